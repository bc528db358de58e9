"""Reads answers out of documents and says how many hosts agree.

Environment: QUESTIONS, a JSON list of {"id", "question", "pattern"} whose pattern has one group, the answer;
DOCUMENTS, a JSON list of {"url", "text"}, or of lists of them. Prints {"claims": [...], "gaps": [...]}.
"""

import json
import os
import re
from urllib.parse import urlsplit


def documents(value):
    for one in value:
        yield from documents(one) if isinstance(one, list) else [one]


def main() -> None:
    found = list(documents(json.loads(os.environ["DOCUMENTS"])))
    claims, gaps = [], []
    for question in json.loads(os.environ["QUESTIONS"]):
        by_answer: dict[str, list[str]] = {}
        for document in found:
            if hit := re.search(question["pattern"], document["text"]):
                by_answer.setdefault(hit[1], []).append(document["url"])
        ranked = sorted(by_answer.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        hosts = {urlsplit(url).hostname for url in ranked[0][1]} if ranked else set()
        if ranked:
            answer, sources = ranked[0]
            claims.append(
                {
                    "id": question["id"],
                    "claim": f"{question['question']} {answer}",
                    "sources": sources,
                    "contradicted_by": [url for _, urls in ranked[1:] for url in urls],
                }
            )
        if len(hosts) < 2:
            gaps.append({"id": question["id"], "question": question["question"]})
    print(json.dumps({"claims": claims, "gaps": gaps}))


if __name__ == "__main__":
    main()
