"""The pictures: they open, differ, show any script, and come ready-made where time is measured."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

import pytest
from PIL import Image, ImageFont

from providers.sandbox import pictures
from providers.sandbox.pictures import Painter, draw
from providers.sandbox.reactions import PICTURE_MARK, Picture, Reaction, filled_body
from providers.sandbox.transliterate import latin

CAT = Picture("gen_1", "a cat on a roof", "c-1")
PROMPTS = [
    "a cat",
    "Кот на крыше, акварель",
    "گربه‌ای روی بام، آبرنگ",
    "猫 🐈 \x00 \u202e reversed",
    "w" * 5000,
    "слово " * 3000,
    "",
]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("has_fonts", [True, False])
def test_any_prompt_gives_a_picture_of_the_size_asked_for(
    prompt: str, monkeypatch: pytest.MonkeyPatch, *, has_fonts: bool
) -> None:
    if not has_fonts:
        monkeypatch.setattr(pictures, "_FONTS", ())
    pictures._font.cache_clear()
    image = Image.open(io.BytesIO(draw(replace(CAT, prompt=prompt, width=432, height=768))))
    image.load()
    pictures._font.cache_clear()
    assert (image.format, image.size) == ("PNG", (432, 768))


def test_the_prompt_and_the_task_show() -> None:
    blank = draw(replace(CAT, prompt="a cat on a roof", correlation=""))
    assert draw(CAT) == draw(CAT)
    assert (
        len({blank, draw(CAT), draw(replace(CAT, prompt="x")), draw(replace(CAT, number=2))}) == 4
    )


def test_without_a_wide_font_other_scripts_are_written_in_latin_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "_FONTS", ())
    pictures._font.cache_clear()
    font, knows_all = pictures._font(20)
    pictures._font.cache_clear()
    assert isinstance(font, ImageFont.FreeTypeFont | ImageFont.ImageFont)
    assert not knows_all
    assert latin("Щука и кот") == "Shchuka i kot"
    assert latin("سلام ۱۲") == "slam 12"
    assert latin("猫") == "?"


def test_ready_made_pictures_are_as_big_as_asked_and_differ_by_task() -> None:
    painter = Painter()
    made = [painter.at_hand(replace(CAT, task_id=f"gen_{n}"), 64_000) or b"" for n in range(100)]
    assert len({hashlib.sha256(one).digest() for one in made}) == 100
    assert all(60_000 < len(one) < 68_000 for one in made)
    for one in made[:10]:
        image = Image.open(io.BytesIO(one))
        image.load()
        assert image.size[0] > 100
    assert painter.at_hand(CAT, 64_000) == painter.at_hand(CAT, 64_000)


def test_drawn_pictures_are_kept_for_a_while() -> None:
    painter = Painter(kept=2)
    assert painter.at_hand(CAT, 0) is None
    painted = painter.paint(CAT)
    assert painter.at_hand(CAT, 0) == painted
    for number in (2, 3):
        painter.paint(replace(CAT, number=number))
    assert painter.at_hand(CAT, 0) is None


def test_a_picture_goes_into_a_body_as_base64_or_as_it_is() -> None:
    assert filled_body(Reaction(body=b'{"a": "' + PICTURE_MARK + b'"}'), b"abc") == b'{"a": "YWJj"}'
    assert filled_body(Reaction(), b"abc") == b"abc"
