"""Several chats at once, streamed, with the openai package. Usage: openai_stream.py [URL]"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI

QUESTIONS = ("Name three colours.", "Count from one to five.", "Say hello in French.")


async def ask(client: AsyncOpenAI, question: str) -> str:
    stream = await client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": question}],
        max_tokens=60,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, tokens = "", 0
    async for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
    return f"{question}\n  {text}\n  [{tokens} tokens]"


async def main(url: str = "http://127.0.0.1:8080/v1") -> None:
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        for answer in await asyncio.gather(*(ask(client, each) for each in QUESTIONS)):
            print(answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
