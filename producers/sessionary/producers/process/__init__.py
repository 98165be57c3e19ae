"""What the client does so that it never harms the process that it works in.

In the order in which a process meets them:

    process_exit    what happens to clients at exit, fork and SIGTERM
"""
