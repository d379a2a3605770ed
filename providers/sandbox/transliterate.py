"""Latin letters for Cyrillic and Persian ones, where no font is at hand that knows them."""

from __future__ import annotations

_CYRILLIC = dict(
    zip(
        "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
        "a b v g d e yo zh z i y k l m n o p r s t u f kh ts ch sh shch ' y ' e yu ya".split(),  # noqa: SIM905  (one line a person can check)
        strict=True,
    )
)
_PERSIAN = dict(
    zip(
        "ابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهیآءئكي۰۱۲۳۴۵۶۷۸۹،؟",
        "a b p t s j ch h kh d z r z zh s sh s z t z ' gh f gh k g l m n v h y a ' y k y 0 1 2 3 4 5 6 7 8 9 , ?".split(),  # noqa: SIM905  (one line a person can check)
        strict=True,
    )
)
_TABLE = str.maketrans(
    _CYRILLIC | {letter.upper(): told.capitalize() for letter, told in _CYRILLIC.items()} | _PERSIAN
)


def latin(text: str) -> str:
    """Text in ASCII; what no table knows becomes a question mark."""
    return text.translate(_TABLE).encode("ascii", "replace").decode()
