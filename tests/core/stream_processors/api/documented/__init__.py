"""Whether the control API does what its OpenAPI document says, by requests that schemathesis makes.

served_state    a worker's API over a state that has every kind of row, in a thread of its own
test_documented the requests, and what is checked of each answer
"""
