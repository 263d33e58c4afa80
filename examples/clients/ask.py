"""Asks a question and prints the answer as it comes. Needs nothing but Python."""

from __future__ import annotations

import argparse
import json
import urllib.request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    body = {
        "messages": [{"role": "user", "content": options.question}],
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{options.url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            # Other lines are empty, or comments that keep the connection open.
            event = line.decode().removeprefix("data: ").strip()
            if not event.startswith("{"):
                continue
            chunk = json.loads(event)
            if "error" in chunk:
                raise SystemExit(chunk["error"]["message"])
            print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
