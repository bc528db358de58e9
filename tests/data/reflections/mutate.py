"""Writes generated.jsonl: sound reflections, damaged the way models damage them, each with the truth behind it.

Run `python -m tests.data.reflections.mutate` from the top of the repository. The seed is fixed, so the file comes out
the same everywhere; a test compares it. `truth` is the object to be read, `unusable` or `truncated`.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEED = 20_240_511
FILE = Path(__file__).parent / "generated.jsonl"
Truth = dict[str, Any]

TRUTHS: tuple[Truth, ...] = (
    {"diagnosis": "two tests fail because parse() drops the last line", "action_items": ["keep it", "test it"]},
    {"diagnosis": 'it says {"a": 1} and "quoted" \\ back', "action_items": ["use `{}` as the default"]},
    {"diagnosis": "Umlaute äöü, 漢字 and 🙂\nsecond line", "action_items": ["a, b; c", "d: [e]", "f // g # h"]},
    {"diagnosis": "解析器丢失了最后一行，因此测试失败。", "action_items": ["保留最后一行", "运行：pytest -q"]},
    {"diagnosis": "الملف غير موجود, فشل الاختبار", "action_items": ["أنشئ الملف"]},
    {
        "diagnosis": "the pattern ^\\d{2,}$ in C:\\work\\new.py does not match 'x'; don't anchor it",
        "action_items": ["write r\"\\d+\" instead of '\\d{2,}'", "run: pytest -k 'not slow'"],
    },
    {
        "diagnosis": "Ошибка «KeyError: 'id'» появляется в load(), потому что id — необязательное поле",
        "action_items": ["use row.get('id')", "skip rows without it", "log how many were skipped"],
    },
    {
        "diagnosis": "[ERROR] exit code 1: {'stderr': ''}",
        "action_items": ["print stderr", "fail early: if not x: raise"],
    },
    {
        "diagnosis": "null is compared with None, true with True",
        "action_items": ["parse booleans", "test null, NaN and 0"],
    },
    {"diagnosis": "the plan said <think> twice and ```json once", "action_items": ["strip </think> first"]},
    {"diagnosis": "a" * 40 + " " + "long sentence. " * 60, "action_items": [f"step {n} of the list" for n in range(9)]},
    {"diagnosis": "tab\there, quote ' and ’ and “both”", "action_items": ['replace “ by "', "keep 5'10\" as it is"]},
)
"""Plain, nested quotes, code, several scripts, long, and texts that look like the structure around them."""

PROSE = (
    "Sure! Here is the reflection:",
    "I looked at the checks {all of them} and this is what I think:",
    "Natürlich, hier ist das Ergebnis:",
    "Note: [1] the tests were changed, too.",
)


def compact(truth: Truth) -> str:
    return json.dumps(truth, ensure_ascii=False)


def pretty(truth: Truth) -> str:
    return json.dumps(truth, ensure_ascii=False, indent=2)


class Chance:
    """Choices from `random()` alone, whose sequence Python promises not to change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def one_of(self, options: Any) -> Any:
        return options[self.below(len(options))]


Fault = Callable[[Truth, Chance], str]


def python_literal(truth: Truth, chance: Chance) -> str:
    return repr({**truth, "confident": chance.one_of((True, False, None))})


def single_quoted(truth: Truth, chance: Chance) -> str:
    def text(value: str) -> str:
        return "'" + json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"

    items = ", ".join(text(item) for item in truth["action_items"])
    return f"{{'diagnosis': {text(truth['diagnosis'])}, 'action_items': [{items}]}}"


def raw_newlines(truth: Truth, chance: Chance) -> str:
    return compact({**truth, "diagnosis": truth["diagnosis"] + "\n- and more"}).replace("\\n", "\n")


def quoted_word(truth: Truth, chance: Chance) -> Truth:
    words = truth["diagnosis"].split(" ")
    at = chance.below(len(words))
    return {**truth, "diagnosis": " ".join((*words[:at], f'"{words[at]}"', *words[at + 1 :]))}


def commented(truth: Truth, chance: Chance) -> str:
    lines = pretty(truth).split("\n")
    remark = chance.one_of(("// see the checks", "# see the checks", "/* see the checks */"))
    lines.insert(1, "  " + remark)
    lines[-2] += " " + remark
    return "\n".join(lines)


def missing_comma(truth: Truth, chance: Chance) -> str:
    lines = pretty(truth).split("\n")
    at = [number for number, line in enumerate(lines) if line.endswith(",")]
    number = chance.one_of(at)
    lines[number] = lines[number][:-1]
    return "\n".join(lines)


def recased(truth: Truth, chance: Chance) -> str:
    first, second = chance.one_of(
        (("Diagnosis", "ActionItems"), ("DIAGNOSIS", "ACTION_ITEMS"), ("diagnosis", "actionItems"),
         ("Diagnosis", "Action Items"), ("diagnosis", "action-items"))
    )  # fmt: skip
    return compact({first: truth["diagnosis"], second: truth["action_items"]})


def duplicated(truth: Truth, chance: Chance) -> str:
    return '{"diagnosis": "to be done", ' + compact(truth)[1:]


def nested(truth: Truth, chance: Chance) -> str:
    return chance.one_of(
        ('{{"reflection": {}}}', '{{"answer": {{"content": {}}}}}', '{{"result": [{}], "ok": true}}')
    ).format(compact(truth))


def item_objects(truth: Truth, chance: Chance) -> str:
    key = chance.one_of(("action", "step", "title", "description", "item"))
    return compact({**truth, "action_items": [{key: item} for item in truth["action_items"]]})


def with_extras(truth: Truth, chance: Chance) -> str:
    extra = chance.one_of(
        ({"confidence": float("nan")}, {"severity": "high", "files": [{"path": "a.py"}]}, {"notes": None})
    )
    return compact({**extra, **truth})


def drafted(truth: Truth, chance: Chance) -> str:
    draft = {"diagnosis": "first idea", "action_items": ["look again"]}
    return f"{compact(draft)}\n\nThat is too vague. Better:\n\n{compact(truth)}"


FAULTS: dict[str, Fault] = {
    "fence": lambda truth, _chance: f"```json\n{pretty(truth)}\n```",
    "open fence": lambda truth, _chance: f"```json\n{pretty(truth)}",
    "prose": lambda truth, chance: f"{chance.one_of(PROSE)}\n\n{compact(truth)}\n\nAnything {{else}}?",
    "thoughts": lambda truth, _chance: f'<think>perhaps {{"diagnosis": "x"}} or {{}}</think>\n{compact(truth)}',
    "double encoded": lambda truth, chance: json.dumps(compact(truth), ensure_ascii=chance.one_of((True, False))),
    "escaped ASCII": lambda truth, _chance: json.dumps(truth),
    "trailing commas": lambda truth, _chance: compact(truth)[:-2] + ",],}",
    "missing brace": lambda truth, _chance: compact(truth)[:-1],
    "too many braces": lambda truth, chance: compact(truth) + chance.one_of(("}", "}}", "]}")),
    "no opening brace": lambda truth, _chance: compact(truth)[1:],
    "unquoted keys": lambda truth, _chance: (
        compact(truth).replace('"diagnosis":', "diagnosis:", 1).replace('"action_items":', "action_items:", 1)
    ),
    "list around": lambda truth, _chance: f"[{compact(truth)}]",
    "byte order mark": lambda truth, _chance: "\ufeff" + compact(truth),
    "carriage returns": lambda truth, _chance: pretty(truth).replace("\n", "\r\n"),
    "single quotes": single_quoted,
    "Python literal": python_literal,
    "comments": commented,
    "missing comma": missing_comma,
    "key case": recased,
    "duplicate key": duplicated,
    "nested": nested,
    "items as objects": item_objects,
    "extra keys": with_extras,
    "draft first": drafted,
}
WRAPPINGS: dict[str, Callable[[str], str]] = {
    "in a fence": lambda text: f"```json\n{text}\n```",
    "after prose": lambda text: f"Here it is, {{as asked}}:\n{text}",
    "after thoughts": lambda text: f'<think>hm {{"diagnosis": "y",}} no</think>{text}',
}


def faulty(chance: Chance) -> Iterator[tuple[str, str, Truth | str]]:
    for kind, fault in FAULTS.items():
        for truth in TRUTHS[:: 2 if kind in ("list around", "byte order mark", "escaped ASCII") else 1]:
            yield kind, fault(truth, chance), truth
    for truth in TRUTHS:
        told = {**truth, "diagnosis": truth["diagnosis"] + "\n- and more"}
        if "\\n" not in json.dumps(told["diagnosis"]).replace("\\n", "", 1):
            yield "raw newline", raw_newlines(truth, chance), told
    for truth in TRUTHS:
        if '"' not in truth["diagnosis"] and "\\" not in truth["diagnosis"]:
            told = quoted_word(truth, chance)
            yield "unescaped quotes", unescaped(told), told


def unescaped(truth: Truth) -> str:
    diagnosis = json.dumps(truth["diagnosis"], ensure_ascii=False)[1:-1].replace('\\"', '"')
    return f'{{"diagnosis": "{diagnosis}", "action_items": {json.dumps(truth["action_items"], ensure_ascii=False)}}}'


def compound(chance: Chance) -> Iterator[tuple[str, str, Truth | str]]:
    kinds = (
        "trailing commas",
        "missing comma",
        "comments",
        "single quotes",
        "Python literal",
        "unquoted keys",
        "key case",
    )
    for kind in kinds:
        for wrapping, wrap in WRAPPINGS.items():
            for _ in range(3):
                truth = chance.one_of(TRUTHS)
                yield f"{kind} {wrapping}", wrap(FAULTS[kind](truth, chance)), truth


def cut(chance: Chance) -> Iterator[tuple[str, str, Truth | str]]:
    for truth in TRUTHS:
        for kind in ("fence", "prose", "trailing commas", "single quotes", "double encoded"):
            text = FAULTS[kind](truth, chance)
            begins, ends = text.index("diagnosis") + 12, last_item(text, truth)
            yield f"cut {kind}", text[: begins + chance.below(ends - begins)], "truncated"


def last_item(text: str, truth: Truth) -> int:
    """Return where the last text of the object ends, before its quote."""
    return max(text.rfind("]", 0, text.rfind("}")) - 2, text.index("diagnosis") + 13)


def lines() -> Iterator[str]:
    chance = Chance(SEED)
    for number, (kind, text, truth) in enumerate((*faulty(chance), *compound(chance), *cut(chance))):
        yield json.dumps({"name": f"{number} {kind}", "text": text, "truth": truth})


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {len(FILE.read_text(encoding='utf-8').splitlines())} answers")
