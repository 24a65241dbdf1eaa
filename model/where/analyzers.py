r"""Analyzers: what texts become before they are compared, of subscriptions and messages alike.

An analyzer is written as calls; the innermost is done first, as in `casefold(nfc(words()))`:

==================  ====================================================================================
call                a text becomes
==================  ====================================================================================
`words()`           its words, in order, by the rules of Unicode (UAX 29): the attribute has several values
`nfc()`             the same characters, composed: `e` and an accent are `é`
`nfkc()`            the same, and other forms of characters replaced: `ﬁ` is `fi`, `①` is `1`
`casefold()`        the same without case, as Unicode folds it: `Straße` is `strasse`
`no_accents()`      the same without accents: `é` is `e`
`stems("english")`  of each word its stem, by an algorithm of Snowball: `bikes` is `bike`
==================  ====================================================================================

Each but `words` takes another one, which comes before it. What comes out is what another round would give, too, so
that the form of a form is itself. `words` needs the package `regex`, and `stems` PyStemmer: `pip install
"tagmatch[text]"` has both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import near_match

WORDS, STEMS = "words", "stems"
_NEEDED = 'analyzers: {} needs the package {}: pip install "tagmatch[text]"'
_STEP = re.compile(r'\s*([a-z_]+)\s*\(\s*(?:"([a-z]+)"\s*(?:,|(?=\))))?')
# The words of ASCII texts by the same rules, and perhaps `_` alone
_ASCII_WORDS = re.compile(r"\w(?:\w|(?<=[A-Za-z])[:.'](?=[A-Za-z])|(?<=[0-9])[,;.'](?=[0-9]))*", re.ASCII)
# Texts whose forms are remembered, and rounds until nothing changes any more
_REMEMBERED, _ROUNDS = 1 << 16, 16

#: Makes a text of another one
_Step = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Analyzer:
    """What texts become before they are compared; `str` of it is how it is written, and what an index keeps.

    Examples
    --------
    >>> from tagmatch import casefold, nfc, words
    >>> print(casefold(nfc(words())))
    casefold(nfc(words()))
    """

    steps: tuple[str, ...]  # the first one first; `stems` with its language

    def __str__(self) -> str:
        text = ""
        for step in self.steps:
            name, _, language = step.partition(" ")
            arguments = [each for each in (f'"{language}"' if language else "", text) if each]
            text = f"{name}({', '.join(arguments)})"
        return text

    @property
    def has_words(self) -> bool:
        """Whether a text becomes several."""
        return self.steps[0] == WORDS

    def forms(self, text: str) -> tuple[str, ...]:
        """What a text becomes: its words, or one text."""
        return _forms(self.steps, text)

    def part(self, text: str) -> str:
        """What a part of a text becomes, such as its beginning: it is neither cut in words nor to stems."""
        return _form(tuple(step for step in self.steps if step != WORDS and not step.startswith(STEMS)), text)


@lru_cache(_REMEMBERED)
def _forms(steps: tuple[str, ...], text: str) -> tuple[str, ...]:
    if steps[0] != WORDS:
        return (_form(steps, text),)
    found = [_form(steps[1:], word) for word in _words_in(text)]
    return tuple(word for word in found if word)


@lru_cache(_REMEMBERED)
def _form(steps: tuple[str, ...], text: str) -> str:
    """What a text becomes by steps again and again, until it stays the same."""
    own = [_step_of(step) for step in steps]
    for _ in range(_ROUNDS):
        before = text
        for step in own:
            text = step(text)
        if text == before:
            break
    return text


# -- steps -------------------------------------------------------------------------------------------------------------


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    kept = (each for each in unicodedata.normalize("NFD", text) if unicodedata.category(each) != "Mn")
    return unicodedata.normalize("NFC", "".join(kept))


_STEPS: Final[dict[str, _Step]] = {
    "casefold": str.casefold,
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "no_accents": _without_accents,
}


def _step_of(step: str) -> _Step:
    name, _, language = step.partition(" ")
    return _stemmer(language) if name == STEMS else _STEPS[name]


@lru_cache(1)
def _boundaries() -> Any:
    try:
        import regex
    except ImportError:
        raise InvalidValueError(_NEEDED.format("words()", "regex")) from None
    # With WORD, `\b` is a boundary as UAX 29 has it, between any two characters
    return regex.compile(r"\b", regex.WORD | regex.V1)


def _words_in(text: str) -> list[str]:
    """The words of a text: what lies between two boundaries and has a letter or a digit."""
    if text.isascii():  # much sooner
        return [each for each in _ASCII_WORDS.findall(text) if each.strip("_")]
    return [each for each in _boundaries().split(text) if any(map(str.isalnum, each))]


@lru_cache(64)
def _stemmer(language: str) -> _Step:
    try:
        import Stemmer
    except ImportError:
        raise InvalidValueError(_NEEDED.format("stems()", "PyStemmer")) from None
    if language not in (known := Stemmer.algorithms()):
        raise InvalidValueError(f"analyzers: there are no stems of {language!r}{near_match(language, known)}")
    # Threads share the object: it has no cache
    found: _Step = Stemmer.Stemmer(language, 0).stemWord
    return found


# -- how they are written ----------------------------------------------------------------------------------------------


def words() -> Analyzer:
    """The words of a text, in order, by the rules of Unicode: they are values of the attribute.

    Returns
    -------
    Analyzer
        This step alone.

    Examples
    --------
    >>> from tagmatch import words
    >>> words().forms("Don't buy 3.5 bikes!")
    ("Don't", 'buy', '3.5', 'bikes')
    """
    return Analyzer((WORDS,))


def casefold(before: Analyzer | None = None) -> Analyzer:
    """A text, or the result of another analyzer, without case.

    Returns
    -------
    Analyzer
        The steps of `before`, and this one.

    Raises
    ------
    TypeError
        `before` is not an analyzer.

    Examples
    --------
    >>> from tagmatch import casefold
    >>> casefold().forms("Straße")
    ('strasse',)
    """
    return _after(before, "casefold")


def nfc(before: Analyzer | None = None) -> Analyzer:
    """A text, or the result of another analyzer, with composed characters.

    Returns
    -------
    Analyzer
        The steps of `before`, and this one.

    Raises
    ------
    TypeError
        `before` is not an analyzer.

    Examples
    --------
    >>> from tagmatch import nfc
    >>> nfc().forms("e\u0301") == ("é",)
    True
    """
    return _after(before, "nfc")


def nfkc(before: Analyzer | None = None) -> Analyzer:
    """A text, or the result of another analyzer, with composed characters, and other forms of characters replaced.

    Returns
    -------
    Analyzer
        The steps of `before`, and this one.

    Raises
    ------
    TypeError
        `before` is not an analyzer.

    Examples
    --------
    >>> from tagmatch import nfkc
    >>> nfkc().forms("ﬁne ①")
    ('fine 1',)
    """
    return _after(before, "nfkc")


def no_accents(before: Analyzer | None = None) -> Analyzer:
    """A text, or the result of another analyzer, without accents.

    Returns
    -------
    Analyzer
        The steps of `before`, and this one.

    Raises
    ------
    TypeError
        `before` is not an analyzer.

    Examples
    --------
    >>> from tagmatch import no_accents
    >>> no_accents().forms("Café")
    ('Cafe',)
    """
    return _after(before, "no_accents")


def stems(language: str, before: Analyzer | None = None) -> Analyzer:
    """The stems of words in a language, by an algorithm of Snowball; other texts are taken for one word.

    Returns
    -------
    Analyzer
        The steps of `before`, and this one.

    Raises
    ------
    TypeError
        `language` is not a `str`, or `before` not an analyzer.
    ValueError
        There is no such algorithm, or PyStemmer is not installed.

    Examples
    --------
    >>> from tagmatch import stems, words
    >>> stems("english", words()).forms("red bikes")
    ('red', 'bike')
    """
    if not isinstance(language, str):
        raise InvalidTypeError(f"analyzers: stems needs the name of a language, not {language!r:.60}")
    _stemmer(language)
    return _after(before, f"{STEMS} {language}")


def _after(before: Analyzer | None, step: str) -> Analyzer:
    if before is not None and not isinstance(before, Analyzer):
        raise InvalidTypeError(f"analyzers: {step} takes another analyzer, such as words(), not {before!r:.60}")
    return Analyzer((*(() if before is None else before.steps), step))


def analyzer_of(given: object) -> Analyzer:
    """The analyzer that is written so, or that is given; InvalidTypeError, InvalidValueError.

    >>> analyzer_of('stems("english", words())').steps
    ('words', 'stems english')
    """
    if isinstance(given, Analyzer):
        found = given
    elif isinstance(given, str):
        found = Analyzer(tuple(reversed(_steps_in(given))))
    else:
        raise InvalidTypeError(f"analyzers: casefold(words()) or such is expected, not {given!r:.60}")
    if WORDS in found.steps:
        _boundaries()
    for step in found.steps:
        if step != WORDS:
            _step_of(step)
    return found


def _steps_in(text: str) -> list[str]:
    """The steps of a written analyzer, the last one first."""
    steps, at = [], 0
    while found := _STEP.match(text, at):
        name, language = found.groups()
        known = [WORDS, STEMS, *_STEPS]
        if name not in known:
            raise InvalidValueError(f"analyzers: there is no {name!r}{near_match(name, known)}")
        if (name == STEMS) != (language is not None):
            written = 'stems("english")' if name == STEMS else f"{name}()"
            raise InvalidValueError(f"analyzers: {name} is written as {written}, not as in {text!r:.60}")
        steps.append(f"{name} {language}" if language else name)
        at = found.end()
    is_closed = "".join(text[at:].split()) == ")" * len(steps)
    if not steps or not is_closed or WORDS in steps[:-1]:
        raise InvalidValueError(f"analyzers: casefold(words()) or such is expected, words innermost, not {text!r:.60}")
    return steps
