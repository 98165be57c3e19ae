"""Protection of the user's process: the client never harms the process that it runs in.

In the order in which a process meets them:

    safe_text       texts of any object, and JSON, that cannot harm the process
    disabled_ports  the external interfaces of a client that is turned off
    guards          callbacks that raise, threads that do not end
    off_loop        threads that work for a coroutine, which may be cancelled
    clocks          a clock that counts while the machine sleeps
"""
