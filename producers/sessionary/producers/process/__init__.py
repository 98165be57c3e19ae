"""What the client does so that it never harms the process that it works in.

process_exit    what happens to clients at exit, fork and SIGTERM
"""
