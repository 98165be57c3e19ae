"""What an operator decides.

    partition   partition list, retry, skip, accept-gap, accept-truncation, repair-clock
    rules       rules list, activate
    spool       spool list, verify, drain

Those of partitions and rules ask the control API of any processor, with the operator's token.
"""
