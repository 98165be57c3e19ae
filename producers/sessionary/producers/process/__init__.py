"""What the client does so that it never harms the process that it works in.

In the order in which a process meets them:

    safe_text       texts that cannot harm the process: of any object, and JSON
    disabled_ports  the outside of a client that is turned off
    guards          callbacks that raise, threads that do not end
    off_loop        threads that work for a coroutine, which may be cancelled
"""
