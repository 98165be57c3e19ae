"""Parts of documents that are drawn: text between two marks of one name."""


def replace_marked(text: str, name: str, drawn: str) -> str:
    """Return `text` with `drawn` on the lines between the marks of `name`.

    Raises ValueError unless each mark is there once.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{begin} and {end} must be there once each, in this order")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{drawn}\n{end}{rest.partition(end)[2]}"
