"""Ways in which a secret stands on a command line, each with a secret of its own that can be searched for."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

NAMES: Final = (
    *(
        "token",
        "hf_token",
        "hf-token",
        "hub.token",
        "tokenizer_token",
        "accessToken",
        "wandb_api_key",
        "api-key",
        "key",
    ),
    *("secret", "client_secret", "password", "db.password", "passwd", "pwd", "passphrase", "pass", "smtp_pass", "pat"),
    *(
        "github-pat",
        "credential",
        "credentials",
        "auth",
        "http.auth",
        "authorization",
        "cookie",
        "session-cookie",
        "sig",
    ),
    *(
        "signature",
        "dsn",
        "sentry_dsn",
        "jwt",
        "private_key",
        "access-key",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "tokens",
    ),
    *("login", "license", "oauth2", "storage.account_key", "passw", "hftoken", "dbpassword", "X-Api-Key"),
)
JOINTS: Final[tuple[Callable[[str, str], list[str]], ...]] = (
    lambda name, secret: [f"--{name}", secret],
    lambda name, secret: [f"--{name}={secret}"],
    lambda name, secret: [f"{name}={secret}"],
    lambda name, secret: [f"--{name}", f"-{secret}"],
    lambda name, secret: [f'{{"lr": 0.1, "{name}": "{secret}"}}'],
    lambda name, secret: [f"https://host.example/x?lr=1&{name}={secret}&b=2"],
    lambda name, secret: [f"++trainer.{name}={secret}"],
)
VALUES: Final = (
    *("https://user:{}@host/x", "https://user:{}/x@host/y", "https://user:p@{}@host/y", "https://{}@github.com/o/r"),
    *("s3://me:{}@bucket/x", "redis://:{}@host:6379/0", "postgresql+psycopg2://u:{}@db.example:5432/x", "u:{}@host/x"),
    *(
        "https://b.example/x?X-Amz-Signature={}",
        "https://b.example/x?X-Amz-Credential={}&X-Amz-Date=1",
        "?sv=2020&sig={}",
    ),
    *(
        "https://h.example/cb#access_token={}&state=1",
        "https://h.example/?q=1%26token%3D{}",
        "https://h.example?Key={}",
    ),
    *("Authorization: Bearer {}", "authorization: Basic {}", "Cookie: a=1; b={}", "X-Api-Key: {}", "PRIVATE-TOKEN: {}"),
    *("Bearer {}", "bearer {}", "Server=x;Password={};Db=y", "Server=x;Pwd={}", "AccountName=x;AccountKey={}=="),
    *(
        "{{token: {}, lr: 1}}",
        "{{'token': '{}', 'lr': 1}}",
        '{{"a": {{"password": "{}"}}}}',
        '{{"tokens": ["a", "{}"]}}',
    ),
    *('["--hf_token", "{}"]', '{{"secret": {{"x": "{}"}}}}', '"{{\\"token\\": \\"{}\\"}}"', '{{"argv": "--token {}"}}'),
    *("a=1,token={}", "lr: 1\ntoken: {}\n", "export HF_TOKEN={}; python x.py", "python x.py --hf_token {} --lr 1"),
    *(
        'login(token="{}")',
        "login(token='{}', x=1)",
        'db.connect(user="a",password="{}")',
        "dict(passwd='{}')",
        'x.y(authorization="{}")',
        'a;cookie="{}"',
        '{{lr:1,password:"{}"}}',
        "os.environ['HF_TOKEN'] = '{}'",
        'curl -H "Authorization: Bearer {}" x',
    ),
    *("hf_{}abcdefgh", "ghp_{}", "gho_{}", "ghu_{}", "ghs_{}", "ghr_{}", "github_pat_{}", "glpat-{}", "gldt-{}"),
    *(
        "sk-{}",
        "sk-proj-{}",
        "sk-ant-api03-{}",
        "sk_live_{}",
        "rk_test_{}",
        "AKIA{}",
        "ASIA{}",
        "eyJ{}.eyJx.y",
        "eyJx.{}",
    ),
    *(
        "eyJab{}",
        "xoxb-1-{}",
        "xoxp-{}",
        "xapp-1-{}",
        "AIza{}abcdefgh",
        "ya29.{}",
        "GOCSPX-{}",
        "npm_{}abcdef",
        "pypi-AgEIcHlwaS5vcmc{}",
    ),
    *("SG.abcdefgh.{}", "hvs.{}", "nvapi-{}abc", "gsk_{}abcdef", "r8_{}abcdefg", "dckr_pat_{}ab", "shpat_{}abcde"),
    *("https://hooks.slack.com/services/{}", "https://discord.com/api/webhooks/1/{}", "ATATT3{}", "AGE-SECRET-KEY-1{}"),
    *("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}"),
)
OTHERS: Final[tuple[Callable[[str], list[str]], ...]] = (
    lambda secret: ["--token", "", secret],
    lambda secret: ["--api-key", "first", secret],
    lambda secret: ["HF_TOKEN", secret],
    lambda secret: ["-u", f"user:{secret}"],
    lambda secret: ["--user", f"me:{secret}"],
    lambda secret: ["-H", f"Authorization: token {secret}"],
    lambda secret: ["--env", f"HF_TOKEN={secret}"],
    lambda secret: ["-e", f"AWS_SECRET_ACCESS_KEY={secret}"],
    lambda secret: ["--override", f"wandb.api_key={secret}", "--lr", "1"],
    lambda secret: [f"https://user:{secret}@host/train.py"],
    lambda secret: ["--config", f"~/c.yaml:token={secret}"],
    lambda secret: [f"+hf/token={secret}"],
)


class Form(NamedTuple):
    """A few words of a command, and the secret in them."""

    words: list[str]
    secret: str


def forms() -> Iterator[Form]:
    """Yield every form, with secrets that are different and found nowhere else."""
    made: list[Callable[[str], list[str]]] = [
        *((lambda secret, name=name, joint=joint: joint(name, secret)) for name in NAMES for joint in JOINTS),
        *((lambda secret, value=value: [value.format(secret)]) for value in VALUES),
        *OTHERS,
    ]
    for number, make in enumerate(made):
        secret = f"SECRET{number:04d}X7Qz"
        yield Form(make(secret), secret)
