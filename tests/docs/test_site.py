"""The pages made from code are up to date; the site has every public name and needs no network."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sessionary.producers
from docs.build import control_api_page, schema_page
from tests.style.project import ROOT

_PAGES = (
    "index",
    "learn/tutorial",
    "guides/client",
    "operate/production",
    "operate/halts",
    "decisions/index",
    "commands",
    "limits",
    "guides/testing",
    "api/producers",
    "api/testing",
    "control_api",
    "schemas",
    "clickhouse",
    "settings",
    "operate/security",
    "runbook",
)
# Attributes that make a browser load something; `href` does so only in these elements.
_SOURCES = {"src", "srcset", "data", "poster"}
_LINKING = {"link", "base"}


class _Loads(HTMLParser):
    """Collects what a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value for name, value in attrs if value and (name in _SOURCES or (name == "href" and tag in _LINKING))
        ]


def network_loads(html: str) -> list[str]:
    """Return what a browser would load for this page from elsewhere than the page's own folder."""
    loads = _Loads()
    loads.feed(html)
    return [source for source in loads.found if re.match(r"(?!data:)[\w+]+:|//", source)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def _page_texts(site: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(site.rglob("*.html")):
        yield path.relative_to(site).as_posix(), path.read_text("utf-8")


def test_every_page_is_there(site: Path) -> None:
    assert [name for name in _PAGES if not (site / f"{name}.html").is_file()] == []


def test_every_public_name_of_the_client_is_in_the_reference(site: Path) -> None:
    page = (site / "api" / "producers.html").read_text("utf-8")
    names = sessionary.producers.__all__
    assert [name for name in names if f'id="sessionary.producers.{name}"' not in page] == []
    assert 'id="sessionary.producers.Session.activity"' in page


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    assert {name: loads for name, text in _page_texts(site) if (loads := network_loads(text))} == {}
    sheets = {path.name: path.read_text("utf-8") for path in site.rglob("*.css")}
    assert sheets
    assert [name for name, text in sheets.items() if re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text)] == []


def test_the_rule_of_the_network_can_fail() -> None:
    html = '<script src="https://x/y.js"></script><link href="//x/y.css"><img src="a.png"><a href="https://x/">x</a>'
    assert network_loads(html) == ["https://x/y.js", "//x/y.css"]
    assert network_loads('<img src="data:image/png;base64,AA==">') == []


def test_the_page_of_events_and_records_is_up_to_date() -> None:
    assert schema_page.PAGE.read_text("utf-8") == schema_page.schema_page(), "make docs redraws it"
    files = [path for folder in ("events", "records", "common") for path in _avro_files(folder)]
    assert schema_page.schema_page().count("\n### ") == len(files) > 0


def _avro_files(folder: str) -> list[Path]:
    return list((ROOT / "schemas" / "sessionary" / "schemas" / "avro" / folder).glob("*.avsc"))


def test_the_page_of_the_control_api_is_up_to_date() -> None:
    assert control_api_page.PAGE.read_text("utf-8") == control_api_page.control_api_page(), "make docs redraws it"
