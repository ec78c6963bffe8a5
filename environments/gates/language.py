"""Whether a text switches its language in mid-sentence, told by the scripts of its letters (Unicode names).

What is quoted, code, a path or an identifier may be foreign. Two kinds of switch are found: words of another script
inside a sentence, and letters of another script inside a word (look-alikes, hidden marks).

Not covered: a switch between two languages of one script (English to French), which needs a model of language.
"""

from __future__ import annotations

import functools
import re
import unicodedata

_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|“[^”]*”|«[^»]*»|„[^“”]*[“”]|「[^」]*」|『[^』]*』|《[^》]*》"
    r"|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)‘[^’\n]*’|^\s*>.*$",
    re.DOTALL | re.MULTILINE,
)
_TOKEN = re.compile(r"[^\s,;!?。，；！？]+")
_IDENTIFIER = re.compile(r"[/\\_@=<>{}\[\]#$%^*+|~\d]|\w[.:]\w")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|[。！？；\n]|…")
_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
_HIDDEN = frozenset("\u200b\u2060\ufeff\u00ad\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BIDI = frozenset("\u202d\u202e\u2066\u2067\u2068")
_FAMILY = {"CJK": "Han", "HIRAGANA": "Han", "KATAKANA": "Han", "HANGUL": "Hangul", "BOPOMOFO": "Han"}
_SCRIPTS = frozenset(
    [
        "LATIN",
        "CYRILLIC",
        "GREEK",
        "ARMENIAN",
        "HEBREW",
        "ARABIC",
        "DEVANAGARI",
        "BENGALI",
        "TAMIL",
        "TELUGU",
        "THAI",
        "GEORGIAN",
        "CHEROKEE",
        "COPTIC",
        "ETHIOPIC",
        "KHMER",
        "LAO",
        "TIBETAN",
        "MYANMAR",
        "GUJARATI",
        "GURMUKHI",
        "KANNADA",
        "MALAYALAM",
        "SINHALA",
        "MONGOLIAN",
    ]
)
_LATIN_RUN = 3


@functools.lru_cache(maxsize=8192)
def script_of(char: str) -> str:
    """The script family of one letter: 'LATIN', 'CYRILLIC', 'Han', ...; '' for marks, digits and symbols."""
    if not char.isalpha():
        return ""
    first = unicodedata.name(char, "").partition(" ")[0].partition("-")[0]
    family = _FAMILY.get(first, first)
    return family if family in _SCRIPTS or family in ("Han", "Hangul") else ""


def _mixed(word: str) -> str | None:
    """Why a word mixes scripts as a look-alike would, None when it does not."""
    scripts = [s for s in map(script_of, word) if s]
    kinds = set(scripts)
    if len(kinds) < 2 or kinds & {"Han", "Hangul"}:
        return None
    if kinds == {"LATIN", "GREEK"} and not _greek_look_alike(word):
        return None
    foreign = next(c for c in word if script_of(c) not in ("", scripts[0]))
    return f"{word!r} mixes letters of {' and '.join(sorted(k.title() for k in kinds))} ({unicodedata.name(foreign)})"


def _greek_look_alike(word: str) -> bool:
    """Δt and µs are symbols; a Greek omicron inside a Latin word is a disguise."""
    return any(c in "οιυνρχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" for c in word) and sum(script_of(c) == "LATIN" for c in word) > 1


def _hidden(text: str) -> str | None:
    for at, char in enumerate(text):
        if char in _BIDI:
            return f"a hidden mark of direction (U+{ord(char):04X})"
        if char in _HIDDEN and 0 < at < len(text) - 1 and text[at - 1].isalpha() and text[at + 1].isalpha():
            return f"a hidden mark inside a word (U+{ord(char):04X})"
    return None


def look_alike(text: str) -> str | None:
    """A disguised word or hidden mark outside quotes, None when there is none."""
    if text.isascii():
        return None
    bare = _QUOTED.sub(" ", text)
    return _hidden(bare) or next((m for m in (_mixed(w) for w in _WORD.findall(bare)) if m is not None), None)


def _weight(word: str) -> int:
    """Words in a word: Han is written without spaces, about two letters a word."""
    return -(-len(word) // 2) if script_of(word[0]) == "Han" else 1


def _without_identifiers(token: re.Match[str]) -> str:
    """Paths, addresses, names with digits or underscores: any script may stand in them."""
    return " " if _IDENTIFIER.search(token.group()) else token.group()


def _switch(sentence: str) -> str | None:
    words = _WORD.findall(_TOKEN.sub(_without_identifiers, sentence))
    foreign = [w for w in words if script_of(w[0]) not in ("", "LATIN") and not _symbol(w)]
    if not foreign:
        return None
    kinds = {script_of(w[0]) for w in foreign}
    if len(kinds - {"Han", "Hangul"}) > 1 or (len(kinds) > 1 and not kinds <= {"Han", "Hangul"}):
        return f"scripts {sorted(k.title() for k in kinds)} in one sentence, at {foreign[0]!r}"
    latin = [w for w in words if script_of(w[0]) == "LATIN"]
    if _longest_latin_run(words) >= _LATIN_RUN or len(latin) > sum(map(_weight, foreign)):
        return f"the sentence goes from Latin to {kinds.pop().title()} at {foreign[0]!r}"
    return None


def _symbol(word: str) -> bool:
    return len(word) <= 2 and script_of(word[0]) == "GREEK"


def _longest_latin_run(words: list[str]) -> int:
    best = run = 0
    for word in words:
        run = run + 1 if script_of(word[0]) == "LATIN" and not word.isupper() else 0
        best = max(best, run)
    return best


@functools.lru_cache(maxsize=4096)
def switch_of_language(text: str) -> str | None:
    """The first switch of language in mid-sentence, in words; None when there is none. Never raises.

    >>> switch_of_language("I will look at the 配置文件 and mend it.")
    "the sentence goes from Latin to Han at '配置文件'"
    >>> switch_of_language("The log says `文件不存在`, so the file is missing.") is None
    True
    """
    if text.isascii():
        return None
    disguised = look_alike(text)
    if disguised is not None:
        return disguised
    sentences = _SENTENCE_END.split(_QUOTED.sub(" ", text))
    return next((found for found in map(_switch, sentences) if found is not None), None)
