"""What an operator decides.

    partition   partition list, retry, skip, accept-gap, accept-truncation, repair-clock
    rules       rules list, activate

These commands ask the control API of any processor, with the operator's token.
"""
