"""The words by which providers tell their failures: one pattern per class, over normalised text and labels.

Knows: wordings. Must not know: which class outranks which, numbers, remedies.

A pattern holds what is said and by no other failure; what a status alone says is not decided here. Spaces in a source
stand for a space, an underscore, a hyphen or nothing, so that a sentence and a code are one wording.
"""

from __future__ import annotations

import re


def _any(*sources: str) -> re.Pattern[str]:
    """Return a pattern for any of the wordings; `~` in a source is a gap of at most 80 characters."""
    return re.compile("|".join(source.replace(" ", "[ _-]?").replace("~", "[^\n]{0,80}?") for source in sources))


REPETITIVE = _any(
    r"repetitive tool calls?",
    r"repeated (?:identical |the same )?tool calls? (?:detected|in (?:the )?(?:conversation|history))",
    r"same tool call with identical",
    r"repeated tool calls?[^\n]{0,60}?(?:loop|stuck)",
    r"(?:tool calls?|function calls?) ~(?:repeated|repeating|duplicated)~(?:consecutive|times|rounds)",
    r"(?:infinite|endless|tool call(?:ing)?) loop (?:was )?detected",
    r"(?:duplicate|identical|repeated) (?:tool|function) calls?~(?:rounds|turns|in a row|too many)",
)

REASONING = _any(
    r"reasoning content~(?:passed back|pass back|is missing|missing|must be|is required|required)",
    r"(?:missing|without|requires?|lacks?|must (?:include|have|contain)|expected)[^\n]{0,40}?reasoning content",
    r"reasoning content~(?:not supported|unsupported|not permitted|not allowed|forbidden|must not|should not"
    r"|unexpected|unknown|unrecognized|extra)",
    r"(?:not permitted|unsupported|unrecognized|unknown|extra inputs?|unexpected)~reasoning content",
    r"thought signature",
    r"thoughtsignature",
    r"signature in thinking block",
    r"(?:invalid|missing|expired|corrupted?)[^\n]{0,20}?signature~(?:thinking|reasoning|thought)",
    r"(?:thinking|reasoning)[^\n]{0,40}?signature~(?:invalid|missing|required|not valid|expired|mismatch)",
    r"thinking[^\n]{0,30}?signature: field required",
    r"expected (?:a )?(?:redacted )?thinking",
    r"must start with a (?:redacted )?thinking block",
    r"thinking blocks?~(?:cannot be modified|must remain|must be preserved|must be passed|are required)",
    r"redacted thinking~(?:cannot be modified|invalid)",
    r"provided without its required (?:following item|reasoning)",
    r"(?:without its|missing) (?:required )?reasoning item",
    r"encrypted content~(?:could not be (?:verified|decrypted)|invalid)",
    r"invalid encrypted content",
    r"must pass~(?:reasoning|thinking)~back",
    r"(?:reasoning|thinking)[^\n]{0,60}?must be (?:passed|sent|returned) back",
    r"(?:item with id|reasoning item) \S{0,2}rs \S{1,130} not found",
)
REASONING_FORBIDDEN = _any(
    r"reasoning content~(?:not supported|unsupported|not permitted|not allowed|forbidden|must not|should not"
    r"|unexpected|unknown|unrecognized|extra)",
    r"(?:not permitted|unsupported|unrecognized|unknown|extra inputs?|unexpected)~reasoning content",
)

HISTORY = _any(
    r"must be followed by tool (?:messages|results?|responses?)",
    r"did not have (?:response messages|tool results|responses)",
    r"(?:insufficient|not enough|missing) tool (?:messages|results?|responses?|outputs?)",
    r"must be a response to a prece+ding message",
    r"no tool (?:output|call|result) found",
    r"item with id [^\n]{1,140}? not found",
    r"no (?:function|custom tool) call (?:output )?found",
    r"tool use (?:ids? )?(?:blocks? )?(?:were |was )?found without",
    r"(?:unexpected|unknown|orphan(?:ed)?) tool (?:use id|result|call id|message)",
    r"tool (?:result|use) (?:blocks? )?must have a corresponding",
    r"tool call result does not follow",
    r"tool results? (?:does|do|must|should|is|are)~(?:follow|match|correspond|precede|found)",
    r"tool results? tool id",
    r"tool call id(?: \S{1,80})?(?: is| was)? (?:not found|invalid|missing|empty|required|duplicate|not match"
    r"|not unique)",
    r"(?:invalid|unknown|missing|duplicate|mismatch(?:ed)?) tool (?:call|use) ids?",
    r"tool call id was \S{1,130} but must be",
    r"tool use ids must be unique",
    r"each tool use must have a single",
    r"multiple tool result blocks",
    r"toolresult blocks?~(?:exceeds|following ids|duplicate|missing|expected)",
    r"expected toolresult blocks",
    r"tooluse blocks?~(?:duplicate|exceeds|without|not followed|missing)",
    r"number of function (?:response|call)s?(?: parts?)?~equal to",
    r"function (?:response|call) turn (?:comes|must come|should come)",
    r"function response~(?:must|should)~(?:immediately )?follow",
    r"not the same number of function calls and responses",
    r"(?:unexpected|invalid) role \S{1,20} after",
    r"(?:expected|invalid) last (?:message )?role",
    r"roles? must alternate",
    r"alternat(?:e|ing) (?:between )?(?:user|roles)",
    r"(?:first|last|final) message must (?:use|be|have|not)",
    r"conversation must (?:start|end|alternate|begin)",
    r"must end with a user (?:message|role|turn)",
    r"(?:does not|doesn.?t) support assistant message prefill",
    r"cannot be empty if is error",
    r"(?:messages?|content|text|content blocks?)~must (?:be|have|contain) non (?:empty|whitespace)",
    r"(?:message|content|parts|assistant)[^\n]{0,60}?(?:must not|cannot|may not|should not) be empty",
    r"content field~is empty",
    r"(?:cannot|must not) end with trailing whitespace",
    r"must have either content or tool calls",
    r"content (?:or|and) tool calls must be set",
    r"(?:tool use\.input|tool use: input|toolcall arguments|\.input): (?:input should|field required)",
    r"arguments~(?:must be (?:a )?(?:valid )?json|must be in json|not valid json|invalid json|parse)",
    r"invalid (?:function|tool call) arguments",
    r"function\.arguments",
    r"tool calls?\S{0,12}function\.name",
    r"(?:messages|input|contents)\S{1,40}(?:tool use\.(?:id|name)|function\.name|call id|\.name|\.id)\b~"
    r"(?:pattern|invalid|too long|expected|should|must)",
    r"toolconfig field must be defined",
    r"tools? (?:param|field|parameter)?~(?:must be (?:defined|provided)|is required)~tool (?:use|result|call)",
    r"invalid message history",
    r"tool (?:messages?|results?|responses?) (?:must|should|can only) (?:immediately )?(?:follow|come after"
    r"|appear after)",
    r"must have (?:at least one parts field|a text parameter)",
    r"duplicate items? found with id",
    r"invalid tool call ids",
)

BILLING = _any(
    r"insufficient (?:quota|balance|credits?|funds)",
    r"(?:credit )?balance (?:is )?(?:too low|insufficient|not enough|exhausted|negative)",
    r"(?:requires|need|needs|purchase|add|buy) more credits",
    r"(?:out of|no|used all|exhausted|ran out of|run out of|not enough)~credits",
    r"credits? (?:limit )?(?:exhausted|depleted|exceeded|required|have run out)",
    r"(?:exceeded|used)~(?:monthly )?included credits",
    r"payment required",
    r"billing (?:hard limit|not active|disabled|error|is not enabled|account)",
    r"billing hard limit reached",
    r"account is not active",
    r"(?:monthly |team |organization )?(?:spending|spend|budget|usage) limit (?:has been |was |is )?"
    r"(?:reached|exceeded|hit)",
    r"reached (?:your|its|the)~(?:spend(?:ing)?|budget|usage|credit) limit",
    r"budget (?:has been )?exceeded",
    r"exceeded budget",
    r"budgetexceeded",
    r"arrearage",
    r"overdue (?:payment|bill|balance)",
    r"account~(?:suspended|overdue|in arrears|good standing)",
    r"quota (?:has been )?(?:exhausted|used up|depleted)",
    r"can only afford",
    r"you have no quota",
    r"key limit exceeded",
    r"prepay(?:ment)? (?:credits|balance)",
    r"(?:free )?trial (?:has )?(?:ended|expired)",
    r"extra usage is required",
    "余额不足",
    "欠费",
    "余额已用完",
    "额度已用",
    "额度不足",
)
CURRENT_QUOTA = _any(r"exceeded (?:your )?current quota", r"exceeded_current_quota")
"""Says "empty account" at one provider and "too fast" at another: what stands beside it decides."""

OVERLOADED = _any(
    r"overload(?:ed)?(?: error)?\b",
    r"(?:over|at|out of|no|insufficient|lack of) capacity",
    r"capacity (?:is |was |has been |limit )?(?:exceeded|reached|exhausted|constraint)",
    r"(?:server|servers|service|system|model|engine|engines)~(?:is|are) (?:currently |too |very )?busy",
    r"server (?:is )?busy",
    r"high (?:demand|load|traffic)",
    r"heavy (?:load|traffic)",
    r"slow down",
    r"model (?:is )?(?:currently |still )?(?:loading|not ready|warming)",
    r"loading model",
    r"modelnotready",
    r"service ?unavailable",
    r"temporarily unavailable",
    r"serveroverloaded",
    "负载",
    "繁忙",
    "访问量过大",
)

WINDOW = _any(
    r"\b(?:tpm|rpm|tpd|rpd|rps|itpm|otpm)\b",
    r"per (?:minute|min|day|hour|second|month|week)\b",
    r"(?:perminute|perday|perhour|permonth)",
    r"tokens? per|requests? per",
    r"/ ?(?:min|minute|day|hour|second)\b",
    r"daily|monthly|weekly|hourly",
)
RATE = _any(
    r"rate limit",
    r"ratelimit",
    r"rate limiting",
    r"\b(?:tpm|rpm|tpd|rpd)\b[^\n]{0,60}?(?:limit|exceeded|reached)",
    r"too many (?:requests|concurrent|connections)",
    r"throttl",
    r"resource (?:has been )?exhausted",
    r"resourceexhausted",
    r"(?:quota|request limit|call rate|usage limit)[^\n]{0,30}?(?:exceeded|reached|limit)",
    r"exceed(?:s|ed)?[^\n]{0,40}?(?:quota|rate limit|call rate)",
    r"limit (?:exceeded|reached)~(?:try again|wait|retry)",
    r"concurren(?:cy|t)[^\n]{0,30}?(?:limit|exceeded|reached|too)",
    r"too many tokens[^\n]{0,40}?(?:per|wait|try again)",
    r"(?:tokens?|requests?) (?:quota|per (?:minute|day|hour)|limit)[^\n]{0,40}?(?:exceeded|reached|limit)",
    r"too many tokens (?:error|processed)",
    r"please wait before trying",
    r"(?:exceeds?|exceeded|reached|limit)[^\n]{0,80}?per (?:minute|min|day|hour|second|month|week)\b",
    r"请求过于频繁|速率限制|频率|并发",
)

OVERFLOW = _any(
    r"context (?:length|window|size|limit)[^\n]{0,20}?(?:exceed|overflow|too)",
    r"exceed(?:s|ed|ing)?[^\n]{0,60}?context (?:length|window|size|limit)",
    r"(?:longer|greater|larger|more) than[^\n]{0,60}?context (?:length|window|size)",
    r"maximum (?:context|prompt|input|sequence) (?:length|size|window|tokens)",
    r"(?:model|s) (?:maximum )?context (?:length|window|size) (?:is|of)",
    r"max (?:context|prompt|input|message|sequence) (?:length|tokens)[^\n]{0,20}",
    r"prompt (?:is )?too (?:long|large)",
    r"input (?:is |text is |prompt is |message is )?too long",
    r"(?:messages?|conversation|request|context|history) (?:is |are )?too long",
    r"prompt exceeds max",
    r"tokens? length (?:is )?too long",
    r"(?:input|prompt) tokens? (?:count)?[^\n]{0,30}?(?:exceed|too (?:many|long|large))",
    r"(?:input|prompt) (?:length|tokens?)[^\n]{0,40}?exceed",
    r"prompt tokens limit",
    r"tokens? count[^\n]{0,40}?exceed",
    r"exceed(?:s|ed)?[^\n]{0,40}?(?:token limit|number of tokens|max(?:imum)? tokens|tokens limit)",
    r"token limit (?:was )?exceeded",
    r"exceed(?:s|ed)?[^\n]{0,20}?maximum context",
    r"exceed context (?:size|length|window)",
    r"context exceeded",
    r"contextwindowexceeded",
    r"context (?:length|window) exceeded",
    r"context overflow",
    r"too many (?:input |prompt )?tokens",
    r"too large for model with",
    r"range of input length",
    r"(?:tokens|prompt|input)[^\n]{0,40}?(?:cannot|must not) exceed \d",
    r"must (?:have )?less than \d+ tokens",
    r"must be less than max seq len",
    r"total tokens of[^\n]{0,40}?exceed",
    r"reduce (?:the length of |your )?(?:the )?(?:messages|prompt|input|context)",
    r"tokens to keep from the initial prompt",
    r"trying to keep the first \d+ tokens",
    r"max tokens must be at least 1, got -",
    r"expected maxlength: \d+",
    r"inputs tokens \+ max new tokens",
    "上下文[^\n]{0,10}(?:长度|超)",
    "(?:输入|提示)[^\n]{0,10}(?:过长|超)",
)

_CAP = r"max (?:completion |output |new )?tokens"
OUTPUT_LIMIT = _any(
    rf"{_CAP}(?: is)? too (?:large|big|high)",
    rf"{_CAP}[^\n]{{0,30}}?> ?\d",
    rf"(?:invalid|range of|valid range of)[^\n]{{0,10}}{_CAP}[^\n]{{0,120}}?\[",
    rf"{_CAP}[^\n]{{0,60}}?(?:less than or equal|at most|must be <=|exceeds?|above maximum|cannot exceed|not exceed"
    rf"|(?:cannot|must not|can not) be (?:larger|greater|more|higher)"
    rf"|maximum value|supported range|must be between|out of range)",
    r"maximum (?:number of )?(?:tokens you requested|output tokens)[^\n]{0,40}?(?:exceeds?|limit|allowed)",
    r"maximum allowed number of output tokens",
    r"supports? at most \S{1,12} (?:completion|output) tokens",
)
NOT_OUTPUT_LIMIT = _any(r"inputs tokens \+ max new tokens", r"tokens per|per minute")

SIZE = _any(
    r"(?:payload|request entity|entity|request body|body|request payload) (?:is )?too large",
    r"request too large",
    r"length limit exceeded",
    r"exceed(?:s|ed)?[^\n]{0,40}?(?:maximum|max|allowed)[^\n]{0,20}?(?:size|bytes|number of bytes)",
    r"(?:size|payload|body|image|file|attachment|pdf|video|audio|media|document)[^\n]{0,40}?"
    r"exceed(?:s|ed)?[^\n]{0,30}?(?:limit|maximum|max|allowed|\d ?mb|\d mib)",
    r"exceed(?:s|ed)?[^\n]{0,30}?\d ?(?:mb|mib|bytes|kb)\b",
    r"image (?:is )?too (?:large|big)",
    r"too many (?:images|files|attachments|pages|documents)",
    r"exceed(?:s|ed)?[^\n]{0,40}?number of (?:pdf )?(?:images|files|attachments|pages|documents)",
    r"(?:maximum|max|at most)[^\n]{0,20}?\d+ (?:images|pdf pages|pages|files)",
    r"image dimensions[^\n]{0,20}?exceed",
    r"larger than max",
    r"string (?:value )?(?:is )?too (?:long|large)",
    r"string value length[^\n]{0,40}?exceeds",
    r"string above max length",
    r"array[^\n]{0,10}?too long",
    r"failed to buffer the request body",
)
LONG_TEXT = _any(r"string (?:value )?(?:is )?too (?:long|large)", r"string value length", r"string above max length")
MEDIA_REFUSED = _any(
    r"could not process image",
    r"(?:unsupported|invalid|does not support|doesn.?t support|not support(?:ed)?)[^\n]{0,40}?"
    r"(?:image|vision|media|audio|video|pdf|multimodal)",
    r"(?:image|vision|audio|video|media|pdf)[^\n]{0,40}?(?:not supported|unsupported|invalid|does not match)",
    r"no endpoints found that support image",
)

CONTENT = _any(
    r"content (?:filter|policy|management policy|moderation)",
    r"contentfilter|contentpolicy|responsibleaipolicy",
    r"data inspection failed|datainspectionfailed",
    r"content exists risk",
    r"(?:blocked|rejected|refused|flagged)[^\n]{0,60}?(?:safety|policy|policies|moderation|violat|filter|prohibited"
    r"|harmful|inappropriate)",
    r"(?:safety|moderation)[^\n]{0,30}?(?:blocked|flagged|rejected|filter)",
    r"prohibited content",
    r"violat(?:e|es|ing|ion)[^\n]{0,30}?(?:usage polic|content polic|polic|guidelines)",
    r"(?:prompt|input|output|content)[^\n]{0,20}?(?:was|were|been) flagged",
    r"requires moderation",
    r"inappropriate content",
    r"guardrail[^\n]{0,20}?(?:intervened|blocked|failed)",
    r"sensitive (?:content|words?|information)|new sensitive",
    "敏感",
)
AUTH = _any(
    r"(?<![a-z])(?:incorrect|invalid|missing|no|expired|wrong|malformed|unknown)(?![a-z])[^\n]{0,20}?"
    r"(?:api key|api token|auth token|x-api-key|access token|bearer|credentials?|authorization"
    r"|authentication|subscription key)",
    r"api key[^\n]{0,30}?(?:not valid|invalid|is required|missing|expired|not found|incorrect|must be set|not set"
    r"|revoked|not provided|disabled)",
    r"didn.?t provide an api key",
    r"x api key header is required",
    r"authentication (?:error|failed|fails|failure|required|parameter)",
    r"authenticationerror",
    r"unauthori[sz]ed",
    r"unauthenticated",
    r"(?:security |sso |session |access |refresh |id |oauth )?token (?:has |is |was |included in the request is )?"
    r"(?:expired|revoked|invalid)",
    r"token[^\n]{0,40}?(?:has expired|does not exist|refresh failed)",
    r"(?:retrieving|loading|refreshing)[^\n]{0,10}?(?:sso )?token",
    r"expiredtoken|unrecognizedclient|invalidclienttokenid|invalidsignature|signaturedoesnotmatch",
    r"(?:unable to locate|could not (?:find|load|resolve)|no valid)[^\n]{0,20}?(?:credentials|authentication)",
    r"default credentials were not found",
    r"credentials?[^\n]{0,20}?(?:expired|invalid|not found|could not be)",
    r"no auth credentials",
    r"user not found",
    r"(?:login|log in|sign in) (?:is )?required|not logged in|please (?:log|sign) in",
)
PERMISSION = _any(
    r"permission[^\n]{0,20}?denied|permissiondenied|permission error",
    r"access[^\n]{0,20}?(?:denied|forbidden)|accessdenied",
    r"\bforbidden\b",
    r"(?:do not|don.?t|does not|not) have (?:access|permission)",
    r"not (?:authorized|entitled)[^\n]{0,20}? to",
    r"organization must be verified",
    r"unsupported country|country[^\n]{0,40}?not supported|location is not supported|not available in your (?:region"
    r"|country)",
    r"has not been used in project|api is disabled|not enabled for",
    r"insufficient permissions?",
)
MISSING = _any(
    r"model not (?:found|exist|available|supported)",
    r"(?:model|deployment|engine|endpoint|inference profile|resource|models/)[^\n]{0,80}?"
    r"(?:not found|does not exist|doesn.?t exist|not exist|no longer available|decommissioned|deprecated"
    r"|is not available|identifier is invalid|was not found|has been (?:retired|removed))",
    r"(?:model|deployment)(?:(?!param|tool|function|feature|input|image|value|schema|field)[^\n]){0,60}?"
    r"(?:is not supported|isn.?t supported|is unknown)",
    r"(?:unknown|invalid|unsupported|no such|unrecognized) model",
    r"not a valid model",
    r"not found error",
    r"deploymentnotfound|modelnotfound|notfounderror",
    r"no endpoints found",
    r"try pulling it",
    "模型[^\n]{0,10}不存在",
)
STREAM = _any(
    r"incomplete chunked read",
    r"without sending (?:a )?complete message body",
    r"premature(?:ly)?(?: close| end|ly closed)?",
    r"incomplete ?read",
    r"stream[^\n]{0,30}?(?:disconnected|ended (?:before|unexpectedly|without)|closed (?:before|unexpectedly)"
    r"|interrupted|aborted|error:|was cut|stalled|terminated|incomplete|internal error|reset)",
    r"remoteprotocolerror|chunkedencodingerror|clientpayloaderror|incompleteread",
    r"unexpected (?:eof|end of (?:stream|file))",
    r"(?:response|connection) (?:ended|closed|terminated) (?:prematurely|before|mid)",
    r"response payload is not completed",
    r"^terminated$|typeerror: terminated",
    r"without (?:a )?(?:finish reason|message stop)",
)
TIMEOUT = _any(
    r"time(?:d)? ?out",
    r"deadline[^\n]{0,5}exceeded",
    r"took too long",
    r"etimedout|esockettimedout",
)
CONNECTION = _any(
    r"connection (?:error|refused|reset|aborted|failed|closed|lost|broken|attempts? failed)",
    r"connect(?:ion)?error|apiconnectionerror|connecterror|connectionrefused|connectionreset",
    r"econn(?:refused|reset|aborted)|enotfound|eai again|epipe|ehostunreach|enetunreach",
    r"(?:could not|cannot|can.?t|failed to|unable to) connect",
    r"getaddrinfo|name or service not known|nodename nor servname|name resolution|could not resolve host|dns",
    r"network (?:is )?(?:unreachable|error)",
    r"socket hang up|broken pipe",
    r"fetch failed",
    r"max retries exceeded with url",
    r"server disconnected",
    r"no route to host",
    r"upstream connect error|no healthy upstream",
    r"certificate verify failed|ssl(?:error|:|certverification)|tls handshake",
    r"proxy ?error",
)
BAD_CERTIFICATE = _any(r"certificate verify failed|sslcertverification|self signed certificate")
OUTPUT = _any(
    r"unterminated string starting",
    r"(?:failed|unable) to (?:call a function|parse (?:the )?(?:tool|function) calls?|parse (?:model )?output)",
    r"tool use failed",
    r"error parsing tool call",
    r"malformed (?:function|tool) call",
    r"(?:model )?(?:output|generated|produced)[^\n]{0,30}?(?:invalid (?:tool|function|json)|could not be parsed"
    r"|did not match)",
    r"json validate failed|output parse failed",
    r"expecting (?:value|property name|, delimiter|: delimiter)[^\n]{0,40}?line \d+ column",
    r"unexpected (?:end of json|token [^\n]{1,20}in json)",
    r"jsondecodeerror",
)
SERVER = _any(
    r"internal (?:server )?(?:error|failure)",
    r"server error|servererror|api error\b",
    r"bad gateway|gateway error",
    r"server had an error",
    r"error occurred while processing your request",
    r"unexpected (?:server )?error",
    r"internalserver|modelerrorexception|modelstreamerror",
    r"upstream (?:error|request failed)",
    r"something went wrong",
)
INVALID = _any(
    r"invalid (?:request|argument|params?|parameter|value|schema|type|input)",
    r"invalidparameter|badrequest|validationexception|validation error|unprocessable",
    r"bad request",
    r"(?:unrecognized|unsupported|unknown|unexpected|missing required|missing)[^\n]{0,10}? (?:request )?"
    r"(?:argument|parameter|param|field|value|property)",
    r"failed precondition",
    r"extra inputs are not permitted|field required|input should be",
)
