"""Tests of migrations.

protocol_model      what an event comes to, by an account that knows nothing of the product
protocol_account    the six invariants, by what was sent and written
migration_machine   Hypothesis's rules over the fold, beside both
"""
