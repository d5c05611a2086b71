"""Prompts for tests on real models: languages, code, numbers, layout."""

TEXTS: dict[str, str] = {
    "english": "The old lighthouse keeper climbed the stairs and",
    "capital": "The capital of Italy is",
    "code": "def fibonacci(n):\n",
    "javascript": "function add(a, b) {\n    return a + b;\n}\n\nconsole.log(add(2, ",
    "numbers": "1, 2, 4, 8, 16, 32,",
    "arithmetic": "12 + 30 = 42\n7 + 8 = 15\n25 + 17 =",
    "german": "Die Straße führt über die Brücke, und am anderen Ufer",
    "chinese": "从前有一个小女孩,她和妈妈住在",
    "emoji": "I passed the exam 🎉🎉 and my friends said: 👍🏽",
    "blank_lines": "Shopping list:\n\n\n- apples\n\n\n- bread\n\n\n",
    "trailing_space": "Roses are red, violets are ",
    "word_problem": (
        "Question: Natalia sold 48 clips in April, and half as many in May. How many clips did she sell altogether?\n"
        "Answer:"
    ),
    "json": '{"name": "Anna", "age": 30, "languages": ["German",',
    "accents": "Le café était fermé, mais la fenêtre de l'hôtel",
    "indented": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "shouting": "WARNING: DO NOT OPEN THIS DOOR!!! ",
}

CHATS: dict[str, list[dict[str, str]]] = {
    "short": [{"role": "user", "content": "Which river flows through Paris?"}],
    "turns": [
        {"role": "user", "content": "Say a number."},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Now double it."},
    ],
    "layout": [{"role": "user", "content": "  Write:\n\n\tfor i in range(3):\n\t\tprint(i)  "}],
}

SYSTEM: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}, *CHATS["short"]]
