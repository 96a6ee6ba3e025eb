"""Kinds of values that a site file may hold: each checks a value, and says the same as JSON Schema."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import date

from .wording import did_you_mean

WALLTIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")


class Rule(ABC):
    """What a value has to be. `about` says what the value means; editors show it."""

    def __init__(self, about: str = "") -> None:
        """Keep what the value means."""
        self.about = about

    @abstractmethod
    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a sentence for each fault of a value; it begins with `key`, the value's place in the file."""

    def json_schema(self) -> dict:
        """Return the rule as JSON Schema, with what the value means."""
        return {"description": self.about, **self.json_type()} if self.about else self.json_type()

    @abstractmethod
    def json_type(self) -> dict:
        """Return the rule as JSON Schema, without what the value means."""


class Text(Rule):
    """One line of text."""

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is no text, or has several lines."""
        if not isinstance(value, str):
            yield f"{key}: expected text, got {value!r}; put it in quotes"
        elif "\n" in value:  # it will stand in a comment or in quotes
            yield f"{key}: expected one line, got {value!r}; fold long text with >-"

    def json_type(self) -> dict:
        """A string without a line break."""
        return {"type": "string", "pattern": r"^[^\n]*$"}


class Like(Rule):
    """Text that a regular expression matches as a whole."""

    def __init__(self, pattern: str, what: str, about: str = "") -> None:
        """what: the expected text in words."""
        super().__init__(about or what)
        self.pattern, self.what = pattern, what

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it does not match."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            yield f"{key}: expected {self.what}, got {value!r}"

    def json_type(self) -> dict:
        """A string with a pattern."""
        return {"type": "string", "pattern": f"^({self.pattern})$"}


class Expression(Rule):
    """A regular expression."""

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if Python cannot compile it."""
        try:
            re.compile(value)
        except (TypeError, OverflowError, re.error) as error:
            yield f"{key}: expected a regular expression in quotes, got {value!r} ({error})"

    def json_type(self) -> dict:
        """A string: Python's expressions are not those of JSON Schema's format `regex`."""
        return {"type": "string"}


class Walltime(Rule):
    """A time as Slurm writes it."""

    def __init__(self, about: str = "a time [D-]HH:MM:SS in quotes") -> None:
        """Without `about`, an editor shows the form."""
        super().__init__(about)

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is none, and how to write one."""
        if isinstance(value, str) and WALLTIME.fullmatch(value):
            return
        hint = '; YAML reads 12:00:00 without quotes as a number: write "12:00:00"' if isinstance(value, int) else ""
        yield f"{key}: expected a time [D-]HH:MM:SS in quotes, got {value!r}{hint}"

    def json_type(self) -> dict:
        """A string with a pattern."""
        return {"type": "string", "pattern": f"^{WALLTIME.pattern}$"}


class Day(Rule):
    """A day."""

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is none."""
        try:
            right = date.fromisoformat(value).isoformat() == value  # Python 3.11 also reads other forms
        except (TypeError, ValueError):
            right = False
        if not right:
            yield f'{key}: expected a day in quotes, "YYYY-MM-DD", got {value!r}'

    def json_type(self) -> dict:
        """A string that is a date."""
        return {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"}


class Flag(Rule):
    """True or false."""

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is neither."""
        if not isinstance(value, bool):
            yield f"{key}: expected true or false, got {value!r}"

    def json_type(self) -> dict:
        """A boolean."""
        return {"type": "boolean"}


class Count(Rule):
    """A whole number."""

    def __init__(self, least: int, about: str = "") -> None:
        """least: the smallest that is allowed."""
        super().__init__(about)
        self.least = least

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is too small or no whole number."""
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
            yield f"{key}: expected a whole number of at least {self.least}, got {value!r}"

    def json_type(self) -> dict:
        """An integer with a minimum."""
        return {"type": "integer", "minimum": self.least}


class Number(Rule):
    """A number above 0."""

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is none."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            yield f"{key}: expected a number above 0, got {value!r}"

    def json_type(self) -> dict:
        """A number above 0."""
        return {"type": "number", "exclusiveMinimum": 0}


class OneOf(Rule):
    """One of several words."""

    def __init__(self, *allowed: str, about: str = "") -> None:
        """allowed: these words."""
        super().__init__(about)
        self.allowed = allowed

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield a fault if it is another one."""
        if value not in self.allowed:
            yield f"{key}: expected one of {', '.join(self.allowed)}, got {value!r}"

    def json_type(self) -> dict:
        """An enumeration."""
        return {"enum": list(self.allowed)}


class ListOf(Rule):
    """A list of values of one kind."""

    def __init__(self, item: Rule, least: int = 0, about: str = "") -> None:
        """item: what each entry is. least: how many there have to be, 0 or 1."""
        super().__init__(about)
        self.item, self.least = item, least

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield the faults of all entries."""
        if not isinstance(value, list) or len(value) < self.least:
            expected = "a list that is not empty" if self.least else "a list"
            yield f"{key}: expected {expected}, got {value!r}"
            return
        for place, entry in enumerate(value):
            yield from self.item.faults(entry, f"{key}[{place}]")

    def json_type(self) -> dict:
        """An array."""
        return {"type": "array", "items": self.item.json_schema(), "minItems": self.least}


class Named(Rule):
    """Values of one kind, each under a name that the file chooses."""

    def __init__(self, item: Rule, about: str = "") -> None:
        """item: what each value is."""
        super().__init__(about)
        self.item = item

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield the faults of all values and names."""
        if not isinstance(value, dict):
            yield f"{key}: expected names with values, got {value!r}"
            return
        for name, entry in value.items():
            yield from Text().faults(name, f"{key}: the name {name!r}")
            yield from self.item.faults(entry, f"{key}.{name}")

    def json_type(self) -> dict:
        """An object of which every property has the same schema."""
        return {"type": "object", "additionalProperties": self.item.json_schema()}


class Record(Rule):
    """Known keys, each with a rule of its own."""

    def __init__(self, required: dict[str, Rule], optional: dict[str, Rule] | None = None, about: str = "") -> None:
        """required: keys that have to be there. optional: keys that may be left out."""
        super().__init__(about)
        self.required, self.known = required, {**required, **(optional or {})}

    def faults(self, value: object, key: str = "") -> Iterator[str]:
        """Yield what is missing, what is unknown, and the faults of all values. key: '' for the whole file."""
        prefix = f"{key}." if key else ""
        if not isinstance(value, dict):
            yield f"{key or 'the file'}: expected keys with values, got {value!r}"
            return
        for name in self.required:
            if name not in value:
                yield f"{prefix}{name}: missing"
        for name, entry in value.items():
            if name in self.known:
                yield from self.known[name].faults(entry, f"{prefix}{name}")
            else:
                yield f"{prefix}{name}: unknown key{did_you_mean(name, self.known)}"

    def json_type(self) -> dict:
        """An object with these properties and no other."""
        properties = {name: rule.json_schema() for name, rule in self.known.items()}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**schema, "required": list(self.required)} if self.required else schema


class TextOr(Rule):
    """One line of text, or a record that has it under a key."""

    def __init__(self, record: Record, about: str = "") -> None:
        """record: the longer form."""
        super().__init__(about)
        self.record = record

    def faults(self, value: object, key: str) -> Iterator[str]:
        """Yield the faults of the form that it has."""
        yield from (self.record if isinstance(value, dict) else Text()).faults(value, key)

    def json_type(self) -> dict:
        """A string or an object."""
        return {"anyOf": [Text().json_schema(), self.record.json_schema()]}
