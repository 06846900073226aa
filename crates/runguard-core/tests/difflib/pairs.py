"""Writes pairs of texts with the ratios Python's difflib gives them, one JSON list a line.

    python3 pairs.py FILE [COUNT]

A line is [left, right, ratio without autojunk, ratio with autojunk]. The pairs are the same on every run.
"""

from __future__ import annotations

import json
import random
import sys
from difflib import SequenceMatcher

SEED = 20_260_115

SENTENCES = """
how do I return an item that arrived damaged
what is your refund policy for digital goods
fix the login bug in the payment service
find all orders of the customer that were shipped late last month
SELECT name, total FROM orders WHERE status = 'open' ORDER BY created_at DESC LIMIT 50
SELECT o.id, c.email FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.total > 100
def retry(call, attempts=3, delay=0.5): return call() if attempts else None
private volatile Thread currentThread;
where is the configuration for the staging environment stored
list the open pull requests of the repository and who reviews them
summarise the meeting notes from Tuesday and send them to the team
error: connection refused (os error 111) while connecting to 127.0.0.1:5432
Traceback (most recent call last): File "app.py", line 42, in handler KeyError: 'user_id'
how can I reset my password without access to my e-mail
schedule a call with the supplier next week, any day but Friday
which of our products contain the recalled component
the quick brown fox jumps over the lazy dog
delete the temporary files older than thirty days
deactivate the user account of the former employee
what does the contract say about early termination
best time to visit Rome with two small children
flights from Berlin to Lisbon in the second week of May
compare the energy use of heat pumps and gas heating
opening hours of the nearest pharmacy on a Sunday
why does the build fail on Windows but not on Linux
memory usage grows until the worker is killed by the kernel
translate the attached letter into plain English
/usr/lib/python3/dist-packages/requests/adapters.py
https://example.com/api/v2/customers?sort=name&page=3
{"action": "search", "query": "late orders", "page": 1, "filters": ["eu", "vip"]}
""".strip().splitlines()

UNICODE_SENTENCES = """
Wie kann ich meine Bestellung zurückschicken, wenn die Größe nicht passt?
Où se trouve la pharmacie la plus proche ouverte le dimanche à Orléans ?
¿Cómo puedo restablecer mi contraseña sin acceso a mi correo electrónico?
Какие документы нужны для возврата товара в магазин
如何在没有收据的情况下退货
返品の手続きはどのようにすればよいですか
كيف يمكنني إعادة تعيين كلمة المرور الخاصة بي
הזמנה מספר שבע עדיין לא הגיעה
Το πακέτο μου δεν έχει φτάσει ακόμα 📦😡
🚀 deploy ✅ tests 🧪 green 💚 ship it 🎉
naïve café résumé coöperate façade ångström
""".strip().splitlines()

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
ASTRAL = "𝒜𝓑𝕮😀😁🚀𐍈𐤀"


def random_words(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def random_letters(rng: random.Random, alphabet: str, least: int, most: int) -> str:
    return "".join(rng.choices(alphabet, k=rng.randint(least, most)))


def mutated(rng: random.Random, text: str) -> str:
    """The text after a few edits, as a person or a model would rephrase it."""
    words = text.split(" ")
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(words) + 1)
        edit = rng.randrange(7)
        if edit == 0:
            words.insert(place, rng.choice(WORDS))
        elif not words or place == len(words):
            words.append(rng.choice(["please", "now", "?", "the"]))
        elif edit == 1:
            words.pop(place)
        elif edit == 2:
            words[place] = rng.choice(WORDS)
        elif edit == 3:
            other = rng.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif edit == 4 and words[place]:
            letter = rng.randrange(len(words[place]))
            words[place] = words[place][:letter] + rng.choice("aeinrst é") + words[place][letter + 1 :]
        elif edit == 5:
            words[place] = words[place].swapcase()
        else:
            words[place] = words[place] * 2
    return " ".join(words)


def short_pair(rng: random.Random) -> tuple[str, str]:
    kind = rng.randrange(10)
    if kind < 3:
        sentence = rng.choice(SENTENCES)
        return sentence, mutated(rng, sentence)
    if kind < 4:
        return rng.choice(SENTENCES), mutated(rng, rng.choice(SENTENCES))
    if kind < 6:
        sentence = rng.choice(UNICODE_SENTENCES)
        return mutated(rng, sentence), mutated(rng, sentence)
    if kind < 7:
        return random_words(rng, 0, 9), random_words(rng, 0, 9)
    if kind < 8:
        alphabet = rng.choice(["ab", "abc", "abcd ", "aä", "a" + ASTRAL, ASTRAL])
        return random_letters(rng, alphabet, 0, 40), random_letters(rng, alphabet, 0, 40)
    if kind < 9:
        # Characters that are the same modulo 128, which a table of 128 buckets must still tell apart.
        alphabet = "a\u00e1\u0161\u01e1bc"
        return random_letters(rng, alphabet, 0, 30), random_letters(rng, alphabet, 0, 30)
    words = random_words(rng, 1, 8).split(" ")
    shuffled = rng.sample(words, len(words))
    return " ".join(words), " ".join(shuffled)


def long_pair(rng: random.Random) -> tuple[str, str]:
    """Around and beyond 200 characters, where Python's junk heuristic sets in."""
    kind = rng.randrange(4)
    if kind == 0:
        alphabet = rng.choice(["abcdefghijklmnopqrstuvwxyz ", "abcdefghijklmnopqrstuvwxyz0123456789äöüßéèàçñøåæœ" + ASTRAL])
        return random_letters(rng, alphabet, 150, 420), random_letters(rng, alphabet, 190, 420)
    if kind == 1:
        text = random_words(rng, 30, 60)
        return text, mutated(rng, mutated(rng, text))
    if kind == 2:
        text = " ".join(rng.choices(UNICODE_SENTENCES, k=rng.randint(4, 8)))
        return mutated(rng, text), mutated(rng, text)
    # Exactly at the edge: 199, 200 and 201 characters.
    text = random_words(rng, 60, 70)
    return mutated(rng, text)[:230], text[: rng.choice([199, 200, 201])]


def ratios(left: str, right: str) -> tuple[float, float]:
    plain = SequenceMatcher(None, left, right, autojunk=False).ratio()
    return plain, SequenceMatcher(None, left, right, autojunk=True).ratio()


def main() -> None:
    path = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    rng = random.Random(SEED)
    with open(path, "w", encoding="utf-8") as out:
        for number in range(count):
            if number % 40 == 0:
                left, right = long_pair(rng)
            else:
                left, right = short_pair(rng)
            out.write(json.dumps([left, right, *ratios(left, right)]) + "\n")
    print(f"{count} pairs in {path}")


if __name__ == "__main__":
    main()
