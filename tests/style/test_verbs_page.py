"""The page of the client's verbs has all of them, and is what the code says."""

import re

from docs.build.verbs_page import FUNCTIONS, GROUPS, PAGE, verbs_of, verbs_page
from sessionary import producers

# The asyncio classes have the same verbs: the page says it once.
_ASYNC = re.compile(r"Async\w+")


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == verbs_page(), "make docs brings it up to date"


def test_each_class_whose_objects_do_something_has_its_table() -> None:
    groups = {group.cls for group in GROUPS}
    public = [getattr(producers, name) for name in producers.__all__ if not _ASYNC.match(name)]
    for each in public:
        is_value = not isinstance(each, type) or issubclass(each, (tuple, Exception)) or hasattr(each, "model_fields")
        methods = [] if is_value else [name for name in vars(each) if not name.startswith("_")]
        assert not methods or each in groups or getattr(each, "_is_protocol", False), each


def test_each_public_function_stands_on_the_page() -> None:
    named = {each.__name__ for each in FUNCTIONS}
    public = {name for name in producers.__all__ if type(getattr(producers, name)).__name__ == "function"}
    assert public <= named


def test_a_verb_has_its_parameters_its_effect_and_its_errors() -> None:
    verbs = {verb.call.partition("(")[0]: verb for group in GROUPS for verb in verbs_of(group)}
    message = verbs["session.message"]
    assert message.call == "session.message(role, content, *, name=None, tokens=None, **metadata)"
    assert message.returns == "str"
    assert set(message.errors) == {"Invalid", "Unavailable"}
    assert verbs["call.tokens_in"].effect.startswith("Tokens of the prompt, with those ")
    assert "last=20" in verbs["session.conversation.read"].call, "a constant is shown by its value"
    assert all(verb.effect.endswith(".") for verb in verbs.values()), "each has a sentence"
