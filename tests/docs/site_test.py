"""//docs:site has every page, and its search finds the pages' words."""

import json
from pathlib import Path

SITE = Path("docs/site")


def test_pages() -> None:
    for page in ("index", "CHANGELOG", "docs/index", "docs/own_kernel", "patches/index"):
        text = SITE.joinpath(page).with_suffix(".html").read_text()
        assert "<h1" in text, page
    assert SITE.joinpath("docs/pictures/decode_step.svg").exists()


def test_search() -> None:
    index = json.loads(SITE.joinpath("search/search_index.json").read_text())
    pages = {
        entry["location"].partition("#")[0]
        for entry in index["docs"]
        if "_ZN3c104cuda10set_deviceEa" in entry["text"]
    }
    assert "docs/getting_started.html" in pages


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = SITE.joinpath("index.html").read_text()
    assert "fonts.googleapis" not in text
