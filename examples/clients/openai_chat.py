"""One chat with the openai package: `pip install openai`. Usage: openai_chat.py [URL]"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8080/v1") -> None:
    client = OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": "Name the capital of France."},
        ],
        max_tokens=60,
        temperature=0.7,
        seed=1,
    )
    choice = answer.choices[0]
    print(choice.message.content)
    print(f"[{choice.finish_reason}; {answer.usage}]")


if __name__ == "__main__":
    main(*sys.argv[1:2])
