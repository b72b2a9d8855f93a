"""Text to try tokenizers and translators with: some to learn from, some that is hostile."""

WORDS = "the quick brown fox jumps over lazy dogs while Zwölf Boxkämpfer jagen Straßen".split()
FOREIGN = ["samedi 9 mai 1998 à l'ÉTÉ", "в субботу 9 мая", "東京 は 夜 の 七時", "السبت ٩ مايو"]
LINES = [" ".join(WORDS[i % 12] for i in range(k, k + 7)) for k in range(40)] + FOREIGN * 2

TEXTS = [
    "",
    " ",
    "the lazy fox",
    "  leading, double  and trailing  spaces ",
    "Große Straßen in İstanbul, ŉ and ẞ",
    "Àé ﬁ ① Ｆｕｌｌ ½ e\u0301 \u1e9b\u0323",
    "السبت ٩ مايو 1998",
    "ภาษาไทย हिन्दी 한국어 ქართული",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "a\x00b\x07\x1b[0m",
    "tab\tnew\nline\r\nand\u2028more\u0085",
    "\u202eright to left\u202c\u200b\ufeff\u00ad",
]
TEXTS += ["東京の夜", "\x00", "▁meta▁symbol", "<s></s><pad><unk><0x41>", "\ufffd\uffff\U0010ffff"]
TEXTS += ["fox " * 2500, "x" * 10_000]
# Not UTF-8: no character at all, half of one, a surrogate, too large a one, an overlong one.
BYTES = [b"\xff\xfe", b"fox\xff\xfedog", b"\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b"\xc0\x80"]
