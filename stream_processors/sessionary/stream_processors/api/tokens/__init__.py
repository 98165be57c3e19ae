"""Which bearer tokens the control API knows, and which caller each one stands for.

    token_store       the tokens in force: of the settings and of a file that may change
    authentication    which caller a token stands for

Pages ask the store; no error and no log line has a token.
"""
