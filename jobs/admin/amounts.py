"""Amounts as people write them, also in Persian or Arabic digits and with their separators.

Whole numbers need nothing: Django reads any digits there.
"""

from __future__ import annotations

from typing import Any

from django import forms

# Decimal() reads all digits, but knows no separators except ".".
_SEPARATORS = str.maketrans({"٫": ".", "٬": "", "\u200e": "", "\u200f": ""})


class AmountField(forms.DecimalField):
    def to_python(self, value: Any) -> Any:
        return super().to_python(value.translate(_SEPARATORS) if isinstance(value, str) else value)
