"""Hide secrets in commands and environment variables, because users show reports to other people.

A value is hidden because of the name before it (`--hf_token x`, `hf.token=x`, `"token": "x"`), or because of its
pattern (`ghp_...`, a user name in a URL, a PEM block). Arguments that only look similar stay readable: `--max-tokens
512`, `--key-dim 64`. Environment variables are kept only if they affect memory and look like settings. A secret with an
unknown name and an unknown pattern cannot be recognized.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Final

HIDDEN: Final = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- names

_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS: Final = _words(
    "password passwords passwd passphrase passcode pwd secret secrets credential credentials cred creds auth authtoken "
    "authorization bearer cookie cookies jwt dsn oauth apikey apikeys secretkey accesskey privatekey accesstoken "
    "hftoken sshpass dbpass userpass pgpass mysqlpass redispass authkey apitoken bottoken hubtoken sessionid "
    "webhook netrc kubeconfig otp totp csrf xsrf pw psw pswd hmac sessid mnemonic kennwort wandbkey hfkey openaikey"
)
# At the end of a name only: the value of `--num-pass-epochs` is not a secret.
_AT_END: Final = _words("pat sig signature sas login license licence tok pin nonce userpwd")
# Users may abbreviate the names of options.
_PREFIXES: Final = ("passw", "secre", "credent", "authori")
# Before `key`, these words mean the key of a dictionary or table, which is not a secret.
_KEY_OF_DATA: Final = _words(
    "sort text image images label labels feature features fn func function input inputs output outputs chosen "
    "rejected prompt json data dict state batch loss metric column target group partition primary foreign video "
    "audio content role message messages response reward query answer answers source src tgt train eval val test "
    "model index idx map row record field tag random prng rng jax seed cache num n question context caption id ids "
    "mask attn attention value checkpoint ckpt weight weights param module layer monitor score tool tools system "
    "user assistant sample "
)
# Before `token`, these words mean a token of a text, which is not a secret.
_TOKEN_OF_TEXT: Final = _words(
    "pad eos bos unk sep cls mask stop special image images video audio start end prompt trigger placeholder "
    "initializer instance class per next num n max min new total train eval val valid test vocab register global "
    "modifier query think text add additional added extra word sub subword sot eot im bpe speech sound first last "
    "generated completion input output context target source src tgt budget batch step steps kept lang language "
    "warmup lr decay global local special seen visual vision vq latent patch object time action state goal count "
    "draft speculative chunk chunked prefill packed ignore use no with by and of"
)
# Before `pass`, these words mean a pass over data, which is not a password.
_PASS_OF_DATA: Final = _words(
    "two single one first second third low high band all multi num n per by forward backward extra each last no"
)
_KEY_OF_ACCESS: Final = _words(
    "api access private encryption signing ssh deploy storage subscription master shared client consumer account "
    "host service app admin"
)
_FIGURE: Final = re.compile(
    r"[-+]?[\d_,.]{1,8}(?:[eE][-+]?\d+)?[kKmMbBgGtT]?(?:i?B)?|true|false|none|null|yes|no|on|off|auto", re.IGNORECASE
)
_COUNT: Final = re.compile(r"[\d_,.]+")
_ENDINGS: Final = ("password", "passwd", "passphrase", "secret", "apikey", "secretkey", "accesskey", "accesstoken")


def is_secret(name: str, value: str = "") -> bool:
    """Return whether a value is secret, judged by its name and, if the name is ambiguous, by the value.

    Args:
        name: the name of an option, a variable, a field or a header, in any spelling.
        value: the value; `--token 5` and `--tokens 4096` are counts and not secrets.
    """
    parts = [part.lower() for part in _PARTS.findall(name.rpartition("/")[2] or name)]
    if not parts:
        return False
    if len(parts) > 1 and parts[-1] in {"file", "path", "dir"}:
        return False  # the location of the secret
    if any(part in _ALWAYS or part.startswith(_PREFIXES) or part.endswith(_ENDINGS) for part in parts):
        return True
    if "key" in parts and _KEY_OF_ACCESS.intersection(parts):
        return parts[-1] not in {"file", "path"}
    value = value.strip("\"' ")
    is_count = bool(parts[-1] in {"tokens", "keys"} and _COUNT.fullmatch(value))
    return _is_secret_by_end(parts) and not is_count and not _FIGURE.fullmatch(value)


def _is_secret_by_end(parts: list[str]) -> bool:
    *before, last = parts
    if last in {"value", "string"} and before:
        return _is_secret_by_end(before)
    if last in _AT_END or (last == "pass" and not _PASS_OF_DATA.intersection(before[-1:])):
        return True
    if last in {"key", "keys"}:
        return not _KEY_OF_DATA.intersection(before[-1:])
    if last in {"token", "tokens"}:
        return not _TOKEN_OF_TEXT.intersection(before[-1:])
    return last.endswith("token") and last.removesuffix("token") not in _TOKEN_OF_TEXT


# ---- forms

_FORMS: Final = (
    r"-----BEGIN [A-Z0-9 ]+-----(?:.|\n)*?(?:-----END [A-Z0-9 ]+-----|\Z)",
    r"AGE-SECRET-KEY-1\w+",
    r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
    r"\bgh[pousr]_[A-Za-z0-9_]{6,}|\bgithub_pat_\w{6,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[\w.-]{6,}",
    r"\bsk-(?:proj|ant|or|svcacct|admin|lf)-[\w-]{6,}|\b[spr]k_(?:live|test)_\w{6,}",
    r"\bsk-(?=[\w-]{0,200}[A-Z])(?=[\w-]{0,200}\d)[\w-]{8,}|\bsk-[A-Za-z0-9]{20,}",
    r"\b(?:AKIA|ABIA|ACCA|AGPA|AIDA|AROA)[A-Za-z0-9]{6,}|\bASIA[A-Z0-9]{12,}",
    r"\beyJ(?:[\w-]{5,}|[\w-]*\.)[\w.-]*",
    r"\bxox[a-z]-[\w-]{6,}|\bxapp-[\w-]{6,}",
    r"\bAIza[\w-]{20,}|\bya29\.[\w.-]{6,}|\bGOCSPX-[\w-]{6,}",
    r"\b(?:npm|shpat|shpss|shpca|gsk|r8|lin_api|figd|dckr_pat|dop_v1|doo_v1|dor_v1|nvapi|secret|rpa|wandb_v\d|ntn)"
    r"[_-](?=\w{0,200}\d)[\w-]{16,}",
    r"\bpypi-[\w-]{16,}",
    r"\bSG\.[\w-]{8,}\.[\w-]{8,}|\bhv[sbr]\.[\w-]{8,}|\bATATT3[\w=-]{8,}|\b(?:pplx|xai|tskey)-[\w-]{8,}",
    r"\b\d{8,10}:AA[\w-]{30,}",
    r"(?<=hooks\.slack\.com/)[\w/]{6,}|(?<=/api/webhooks/)[\w/-]{6,}",
)
_FORM: Final = re.compile("|".join(_FORMS))
_IN_HEADER: Final = re.compile(
    r"\b(?:((?i:bearer)[ :=]+)|((?i:basic) +)(?=[\w+/]{0,200}[A-Z])(?=[\w+/]{0,200}[0-9=])(?=[\w+/=]{8})|"
    r"((?i:token) +)(?=[\w-]{0,200}\d)(?=[\w-]{16}))"
    r"[^\s\"',;]{6,}"
)
_USER_IN_ADDRESS: Final = re.compile(
    r"(?<=://)(?:[^\s/?#\"'<>]{0,2000}|[^\s/:@?#]{0,200}:(?!\d+[/?#])[^\s\"'<>]{0,200})@"
)
_USER_BEFORE_HOST: Final = re.compile(r"(?<![\w.:/@+-])([\w.+-]+):([^\s/@:\"']{3,})@(?!sha256)(?=[\w\[])")
# The quantifier is possessive and has a limit, because a name can begin behind each bracket within another one.
_NAME: Final = r"(?<![\w.\-/])(?P<name>[\w./][\w.\-/\[\]]{0,1000}+)"
_QUOTED: Final = r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
_ASSIGNED: Final = re.compile(
    rf"(?P<open>\\{{0,64}}[\"']?){_NAME}(?P<close>\\{{0,64}}[\"']?\]?)(?P<sign>\s*:?=>?\s*|\s*:\s*|%3[DdAa]|%22%3A%22)"
)
_MAY_HOLD: Final = re.compile(
    r"[=:@]|%3|-----|hf_|api_org_|gh[pousr]_|github_pat|gl[a-z]{2,6}-|[spr]k[-_]|A[A-Z]{3}|AGE-|eyJ|xox|xapp|AIza|ya29|GOCSPX|"
    r"[_-]\w{16}|pypi-|SG\.|hv[sbr]\.|(?i:bearer|basic|token )|(?:\A|\s)--?\w"
)
_LONGEST_LITERAL: Final = 1 << 16


@lru_cache(maxsize=1 << 14)
def hidden_text(text: str) -> str:
    """Hide the secrets in a text: values after names such as `password=`, and known token patterns."""
    if not _MAY_HOLD.search(text):
        return text
    return _without_forms(_without_assigned(text, end=_END_IN_TEXT))


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Hide the secrets in the arguments of a command."""
    shown: list[str] = []
    name, number = "", 0
    for word in words:
        if name in _USER_OPTIONS:
            shown.append(_hidden_word(_USER.sub(rf"\1:{HIDDEN}", word)))
            name = ""
            continue
        # The first value may begin with a dash, because a password may.
        if name and not (word.startswith("-") if number else _OTHER_OPTION.fullmatch(word)):
            number += 1
            is_shown = not is_secret(name, word) or (number > 1 and word.endswith((".py", ".pyw")))
            shown.append(_hidden_word(word) if is_shown else HIDDEN)
            continue
        name, number = (word if _is_secret_option(word) else ""), 0
        shown.append(_hidden_word(word))
    return tuple(shown)


_IN_QUOTES: Final = re.compile(r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\n])++)(?P<end>(?P=quote)?)""")


class SourceCode(str):
    """Python source code, or a diff of Python source code.

    Only string literals can be secrets in source code.
    """

    __slots__ = ()

    def without_secrets(self) -> "SourceCode":
        """Hide the secrets in the string literals of the source code."""
        return SourceCode("".join(_hidden_line_of_code(line) for line in self.splitlines(keepends=True)))


def _hidden_line_of_code(line: str) -> str:
    shown = hidden_text(line)
    if shown == line:
        return line
    return _IN_QUOTES.sub(
        lambda found: (
            found[0] if not found["end"] or found["text"] in shown else found["quote"] + HIDDEN + found["quote"]
        ),
        line,
    )


def hidden_data(thing: Any) -> Any:
    """Hide the secrets in all strings of plain data or dataclasses."""
    if isinstance(thing, SourceCode):
        return thing.without_secrets()
    if isinstance(thing, str):
        return hidden_text(thing)
    if isinstance(thing, dict):
        return {name: hidden_data(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        if all(isinstance(one, int | float) for one in thing):
            return thing
        changed = [hidden_data(one) for one in thing]
        if not isinstance(thing, tuple):
            return changed
        return thing._make(changed) if hasattr(thing, "_make") else tuple(changed)
    if is_dataclass(thing) and not isinstance(thing, type):
        values = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
        found = {name: hidden_data(value) for name, value in values.items()}
        return replace(thing, **found) if any(found[name] is not values[name] for name in found) else thing
    return thing


# ---- arguments of a command

_OPTION: Final = re.compile(r"[-+~]{1,2}(?P<name>[A-Za-z_][\w.\-:/@]*)")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_OTHER_OPTION: Final = re.compile(r"--[a-z][a-z0-9]*(?:[-_.][a-z0-9]+)*(?:=.*)?", re.DOTALL)
_SET: Final = re.compile(r"[-+~]*(?P<name>[A-Za-z_][\w.\-/@\[\]]*)(?P<sign>:?=|:(?!//))", re.ASCII)
_USER_OPTIONS: Final = frozenset({"-u", "--user", "--proxy-user"})
_USER: Final = re.compile(r"\A([^:/\\]+):(?!/|\d+\Z).+", re.DOTALL)


def _is_secret_option(word: str) -> bool:
    option = _OPTION.fullmatch(word)
    if option is not None:
        return word in _USER_OPTIONS or is_secret(option["name"], "?")
    return _VARIABLE.fullmatch(word) is not None and is_secret(word, "?")


def _hidden_word(word: str) -> str:
    literal = _hidden_literal(word)
    if literal is not None:
        return literal
    found = _SET.match(word)
    if found is not None and word[found.end() :] and is_secret(found["name"], word[found.end() :]):
        return f"{word[: found.end()]}{HIDDEN}"
    if found is not None and (literal := _hidden_literal(word[found.end() :])) is not None:
        return f"{word[: found.end()]}{literal}"
    if not _MAY_HOLD.search(word):
        return word
    return _without_forms(_without_assigned(_hidden_line(word), end=_END_IN_WORD))


def _hidden_line(word: str) -> str:
    if len(word) > _LONGEST_LITERAL or not word.split()[1:]:
        return word
    try:
        words = shlex.split(word)
    except ValueError:  # a quotation without an end
        words = word.split()
    hidden = without_secrets(words) if words != [word] else tuple(words)
    return word if list(hidden) == words else " ".join(hidden)


def _hidden_literal(word: str) -> str | None:
    if not word.lstrip().startswith(("{", "[")) or len(word) > _LONGEST_LITERAL:
        return None
    try:
        data = json.loads(word)
    except (ValueError, RecursionError):
        return None
    hidden = _without_secret_fields(data)
    return word if hidden == data else json.dumps(hidden, ensure_ascii=False)


def _without_secret_fields(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            name: HIDDEN
            if is_secret(name, value if isinstance(value, str) else json.dumps(value))
            else _without_secret_fields(value)
            for name, value in data.items()
        }
    if isinstance(data, list):
        return (
            list(without_secrets(data))
            if data and all(isinstance(one, str) for one in data)
            else [_without_secret_fields(one) for one in data]
        )
    return _hidden_word(data) if isinstance(data, str) else data


# ---- within a text

_END_IN_TEXT: Final = re.compile(rf"(?:{_QUOTED}|[\[{{][^\n]*|[^\s\"'&|;,)}}\]]*)")
_END_OF_LINE: Final = re.compile(r"[^\n\"']*")
_END_IN_WORD: Final = re.compile(rf"(?:{_QUOTED}|[\[{{][^\n]*|[^\n]*)")
_END_IN_QUERY: Final = re.compile(r"[^\s&\"'#]*")


def _without_assigned(text: str, *, end: re.Pattern[str]) -> str:
    parts: list[str] = []
    place, in_text = 0, end is _END_IN_TEXT
    for found in _ASSIGNED.finditer(text):
        if text.startswith(HIDDEN, found.end()):
            continue
        if found.start() < place or not _is_told_secret(found, text[found.end() : found.end() + 1], in_text=in_text):
            continue
        before, after = text[found.start() - 1 : found.start()], text[found.end() : found.end() + 5]
        ends = _end_of_value(found, before, after, end)
        value = ends.match(text, found.end())
        assert value is not None  # the pattern matches the empty string
        if not value[0].strip() or not is_secret(found["name"], value[0]):
            continue
        parts += [text[place : found.end()], HIDDEN]
        place = value.end()
    return "".join(parts) + text[place:]


def _end_of_value(found: re.Match[str], before: str, after: str, end: re.Pattern[str]) -> re.Pattern[str]:
    if "%3" in found["sign"] or before in ("?", "&", "#"):
        return _END_IN_QUERY
    if found["open"].startswith("\\"):
        return _ESCAPED
    if after == _QUOTE_IN_SHELL:
        return _QUOTED_IN_SHELL
    is_header = _is_header(found["name"]) and not found["close"] and not after.startswith(('"', "'"))
    return _END_OF_LINE if is_header else end


# A shell writes a single quote like this inside a single-quoted argument.
_QUOTE_IN_SHELL: Final = "'\"'\"'"
_QUOTED_IN_SHELL: Final = re.compile(f"{_QUOTE_IN_SHELL}.*?(?:{_QUOTE_IN_SHELL}|$)", re.MULTILINE)
_ESCAPED: Final = re.compile(r"(?<!\\)\\++[\"'].*?(?<!\\)\\++[\"']|[^\s,}\\]*")


def _is_told_secret(found: re.Match[str], first: str, *, in_text: bool) -> bool:
    name, sign = found["name"], found["sign"].strip()
    if in_text and sign == ":" and not found["close"]:  # sentences have colons too, so only unambiguous names count
        return _is_header(name) or (first in ('"', "'") and is_secret(name, "0"))
    return is_secret(name, "?")


def _is_header(name: str) -> bool:
    return name.lower() in {"authorization", "cookie", "set-cookie", "proxy-authorization", "password", "passwd"}


def _without_forms(text: str) -> str:
    text = _FORM.sub(HIDDEN, text)
    text = _IN_HEADER.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", text)
    text = _USER_IN_ADDRESS.sub(f"{HIDDEN}@", text)
    return _USER_BEFORE_HOST.sub(rf"\1:{HIDDEN}@", text)


# ---- environment variables

# Variables of PyTorch, CUDA, NCCL and launchers that affect memory or the processes of a run.
_TOLD: Final = _words(
    """
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
    PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_TUNABLEOP_ENABLED PYTORCH_JIT
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_COMPILE_DISABLE TORCH_CUDA_ARCH_LIST
    TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT TORCH_CUDNN_USE_HEURISTIC_MODE_B
    TORCH_DISTRIBUTED_DEBUG TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_NAN_CHECK
    TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_SHOW_CPP_STACKTRACES
    TORCHDYNAMO_DISABLE TORCHINDUCTOR_FREEZING TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM
    CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES
    CUDA_CACHE_DISABLE CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_DISABLE_PERF_BOOST CUDA_FORCE_PTX_JIT
    CUDA_LAUNCH_BLOCKING CUDA_MANAGED_FORCE_DEVICE_ALLOC CUDA_MODULE_DATA_LOADING CUDA_MODULE_LOADING
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_SCALE_LAUNCH_QUEUES CUDA_VERSION
    CUDA_VISIBLE_DEVICES
    NCCL_ALGO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DEBUG NCCL_GRAPH_REGISTER NCCL_IB_DISABLE
    NCCL_LAUNCH_MODE NCCL_LL128_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS
    NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL
    NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_PROTO NCCL_RUNTIME_CONNECT NCCL_SHM_DISABLE
    ACCELERATE_MIXED_PRECISION OMP_NUM_THREADS MKL_NUM_THREADS
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK
    """
)
_SETTING: Final = re.compile(r"[\w.,:;+\-|\[\]<> /=*%^]{0,300}", re.ASCII)


def told_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a report may show, sorted by name.

    They are on a fixed list, and their values look like settings and not like secrets.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in _TOLD and _SETTING.fullmatch(value) and "://" not in value and hidden_text(value) == value
    }
