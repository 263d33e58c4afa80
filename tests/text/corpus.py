"""Texts that tokenizers get wrong: languages, code, emoji, spaces, invisible characters."""

from __future__ import annotations

LANGUAGES = (
    "The quick brown fox jumps over the lazy dog. It's what they'd've said, isn't it?",
    "IT'S WHAT THEY'LL SAY; we'Re here, he'S there.",
    "Zwölf Boxkämpfer jagen Eva quer über den Sylter Deich – „größer“ als Maß.",
    "Où est la bibliothèque ? L'œuvre d'été coûte 1 234,56 €.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.",
    "عِندما يُريد العالَم أن يتكلّم، فهو يتحدّث بلغة يونيكود.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश।",
    "กำลังทดสอบภาษาไทย ๑๒๓",
    "今日は世界、カタカナとひらがな、漢字が混ざる。１２３",
    "他说:“你好,世界!”2024年12月31日。",
    "안녕하세요 세계! 한글과 English를 섞어 씁니다.",
    "Tiếng Việt có dấu: Nghĩa của từ được giữ nguyên.",
    "Nǐ hǎo e\u0301te\u0301 re\u0301sume\u0301 A\u030angstro\u0308m",
    "ĐàLạt Ⅷ ½ ² ³ ④ ٣٤٥ 𝟙𝟚𝟛",
)
CODE = (
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r:>10}"  # done\n',
    'for (int i = 0; i < 10; ++i) {\n\tprintf("%d\\n", i);\r\n}\r\n',
    '<div class="a"><p>1 &lt; 2</p></div><!-- c -->',
    "SELECT * FROM t WHERE a >= 3.1415926 AND b != 'x''y';",
    "x = 1234567890 + 0xDEADBEEF - 1e-10; y**=2; z//=3",
    "https://example.org/a_b-c?d=e&f=%20#g C:\\Windows\\System32",
    "$ grep -rn 'foo\\|bar' . | awk '{print $1}' && echo \"done\" > /dev/null 2>&1",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9"}}',
)
EMOJI = (
    "👍🏽 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ☀️ 🤷🏻‍♂️",
    "😀😃😄 text 🚀🚀 done ✅.",
    "né→漢👩‍💻",
)
SPACES = (
    " leading",
    "  two leading",
    "trailing ",
    "trailing  \n",
    "a  b   c    d\te\t\tf",
    "\n\n\nx\n \n  y \n",
    "a\r\nb\rc\n\r\nd",
    "\u00a0nbsp\u2003em\u3000wide\u200bzero\ufeffbom",
    " ",
    "   ",
    "\t\n \r\n",
    "x\n\n\n\n    y",
)
ODD = (
    "",
    "a",
    "~!@#$%^&*()_+-=[]{}|;':\",./<>?`\\",
    "!!!???...---***===+++",
    "don't'll've'S 'sx '' '",
    "\u200d\u0301\u0e31 \ufe0f",
    "\U0010ffff\U000e0001\u2028\u2029",
    "<|im_end|> </s> [INST] <think> <|endoftext|",
    "Ġ Ċ ▁ ▁▁x",
    "1 12 123 1234 12345 123456 1,234.5",
)
TEXTS = LANGUAGES + CODE + EMOJI + SPACES + ODD


def space_texts() -> list[str]:
    """200 texts of leading, trailing and inner runs of spaces, tabs and line ends."""
    runs = ["", " ", "  ", "   ", "\t", "\n", "\r\n", " \n ", "\t  ", "\n\n"]
    words = ["word", "Zwei Wörter", "x=1"]
    texts = [f"{lead}{words[i % 3]}{inner}b{lead}" for i, inner in enumerate(runs) for lead in runs]
    return texts + [f"{a}é{b}" for a in runs for b in runs]
