"""Names, and lengths of the documents' lines, over the whole project."""

import ast

from tests.style import rules
from tests.style.project import ROOT, Module, all_modules, tracked_files


def _modules(*, tests: bool) -> list[Module]:
    return [module for module in all_modules() if (module.package == "tests") is tests]


def _product_names() -> set[str]:
    return set().union(*(rules.function_names(module.tree) for module in _modules(tests=False)))


def test_few_function_names_are_one_participle() -> None:
    names = rules.bare_ed_names(_product_names())
    assert len(names) <= rules.BARE_ED_NAMES_MAX, names


def test_lines_of_documents_have_at_most_100_columns() -> None:
    documents = [path for path in tracked_files() if path.suffix == ".md"]
    assert documents
    found = {str(path.relative_to(ROOT)): rules.long_document_lines(path.read_text("utf-8")) for path in documents}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_rule_of_names_can_fail() -> None:
    tree = ast.parse(
        "def noted(): ...\ndef _read_row(): ...\nclass A:\n    def seed(self): ...\n    def __len__(self): ..."
    )
    names = rules.function_names(tree)
    assert names == {"noted", "read_row", "seed"}
    assert rules.bare_ed_names(names) == ["noted"]


def test_the_rule_of_document_lines_can_fail() -> None:
    long = "word " * 21
    assert len(rules.long_document_lines(f"short\n{long}\n")) == 1
    exempt = [f"    {long}", f"| {long} |", f"[a link](https://host/{long})", f"```\n{long}\n```"]
    assert rules.long_document_lines("\n".join(exempt)) == []
