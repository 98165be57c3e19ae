"""One Hypothesis profile for all tests, with fixed examples.

`HYPOTHESIS_PROFILE=explore` tries more examples.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.second_rules.known import second_rules_known

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture
def second_rules() -> Iterator[None]:
    """Let this process know the rules that only tests have."""
    with second_rules_known():
        yield
