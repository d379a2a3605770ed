"""Word lists of what is wrong with a request, a key, a target or a machine. In the languages that providers say it in.

Every pattern runs over folded text (evidence.fold): lower case, "_" and "-" between letters and camelCase opened to spaces,
" | " between parts. `[^|]{0,n}` therefore never reaches over to another sentence of the answer. A list tells what is said;
what follows from it, and which list beats which, is classify.py's. What has run out is in scarcity.py.
"""

from __future__ import annotations

import re


def any_of(*alternatives: str) -> re.Pattern[str]:
    """One pattern that finds any of them."""
    return re.compile("|".join(alternatives))


# A request that can never be served as it is: length and size, not speed or money.
NEVER_FITS = any_of(
    r"(?:can ?not|can't|must not|may not|should not) exceed(?![^|]{0,40}(?:per|/) ?(?:s|min|hour|day))",
    r"(?:length|size|resolution|dimensions?|pixels|characters)\b[^|]{0,20}exceed|shorter prompt",
    r"smaller (?:image|file)\b",
    r"request(?: is)? too large|must be reduced|reduce (?:your message size|the length of)",
    r"(?:maximum|max) (?:context|prompt|input|sequence|content|message) length",
    r"context (?:length|window|limit|size)",
    r"(?:prompt|input|request|message|text|context|content|string|conversation|query|url|uri)s? (?:is |are |was )?too (?:long|large|big)",
    r"too many (?:input |prompt )?tokens in (?:the |your )?(?:request|prompt|input)",
    r"exceed\w*[^|]{0,20}(?:model|context|input|prompt)[^|]{0,12} (?:token )?limit",
    r"(?:payload|entity|body|content|file|image|upload|picture|photo|attachment|header fields?)s? (?:is |are )?too (?:large|big)",
    r"exceed\w*[^|]{0,30}(?:(?<!usage )size|length|bytes|\bmb\b|pixels|characters|resolution|dimensions?)\b",
    r"larger than (?:the )?(?:maximum|limit|allowed)|max tokens is too large",
    r"extra usage is required",
    r"上下文(?:长度|窗口)|(?:长度|大小|字数)[^|]{0,12}(?:超|过长|过大)|超(?:出|过)[^|]{0,12}(?:长度|大小|字数|上下文)",
    r"(?:输入|内容|文本|提示词)过长|(?:文件|图片)过大",
    r"слишком (?:длинн|больш(?:ой|ая|ое) (?:запрос|файл|изображ|размер|объ[её]м))",
    r"(?:запрос|файл|текст|промпт|изображение|картинка) слишком больш",
    r"превы\w+[^|]{0,30}(?:длин|размер|контекст|символ)|(?:длин|размер)\w*[^|]{0,25}превыш",
    r"بیش از حد (?:طولانی|بزرگ)|(?:طول|حجم|اندازه)[^|]{0,25}بیش از|خیلی (?:طولانی|بزرگ)|طويل جدا",
    r"كبير جدا|کبیر جدا",
    r"長すぎ|大きすぎ|너무 (?:깁|길|큽)|demasiado (?:largo|grande)|zu (?:lang|groß)",
    r"trop (?:long|grand|volumineu)",
)

# Refused for what it shows or says.
MODERATION = any_of(
    r"content (?:policy|policies|filter|moderation|safety|guideline|violation|restriction|is not allowed|not allowed|blocked|rejected)",
    r"safety (?:system|filter|setting|check|polic|guideline|reason|violation)|image safety",
    r"(?:blocked|rejected|refused) (?:by|for|due to) (?:our )?safety",
    r"moderat(?:ion|ed)|sensitive (?:content|word|information|data|topic|material|image)",
    r"\b(?:input|output|new|text) (?:new )?sensitive\b|flagged (?:by|as|for)|\bnsfw\b",
    r"inappropriate|harmful content",
    r"violat\w*[^|]{0,40}(?:polic|guideline|terms|rules)",
    r"against (?:our|the) (?:content |usage )?(?:polic|guideline|rules)",
    r"generated (?:image|content|output|picture|video)s? (?:was|were|is|are|has been|have been) (?:blocked|filtered|rejected|flagged|removed)",
    r"responsible ai|data inspection failed|risk (?:control|check)",
    r"risk[^|]{0,12}(?:not pass|reject|fail)|prohibited (?:content|use|word)",
    r"(?:blocked|banned) (?:words?|terms?|prompt|content)|recitation|policy violation",
    r"usage polic",
    r"(?:public|well known) (?:figure|person)|copyright(?:ed)? (?:content|material|restrict)",
    r"likeness",
    r"敏感|违规|违禁|审核(?:未|不)|内容(?:审核|安全|不合规|违)|不合规|不当内容|不安全|色情|安全(?:系统|策略|过滤|审核)|风控",
    r"модерац|политик\w+ (?:контент|безопас|использ)|запрещ[её]нн\w+ (?:контент|содерж|тем|слов)",
    r"(?:недопустим|неприемлем)\w+ (?:контент|содерж|материал)|нарушает (?:правила|политик)",
    r"цензур|фильтр\w* (?:контент|безопас)",
    r"نامناسب|(?:خلاف|نقض)[^|]{0,20}(?:قوانین|سیاست|مقررات)",
    r"محتوای (?:حساس|غیر ?مجاز|ممنوع|نامناسب)|سیاست(?: های)? محتوا|محتوى (?:غیر|حساس|مخالف)",
    r"سیاسة المحتوى",
    r"コンテンツポリシー|不適切|안전 ?정책|콘텐츠 ?정책|política de contenido|inhaltsrichtlin|politique de contenu",
    r"política de conteúdo",
)

# The work ran and nothing came of it: not free, whatever the status.
NOTHING_CAME = any_of(
    r"no (?:images?|media|output|result|video)s? (?:was|were|has been|have been|could be)? ?(?:generated|returned|produced)",
    r"没有生成|изображение не (?:было )?(?:создано|сгенерировано)",
)

# Moderation that looked at a picture already drawn: it may have been paid for.
AFTER_DRAWING = any_of(
    r"generated (?:image|content|output|result|picture|media)s?|content checker",
    r"post (?:img|image|video|text) risk|moderation blocked|image safety",
    r"partial (?:image|result|output)",
    r"outputs? (?:image|content|was|were|has|have|is|are|may|data|moderation|filter|safety|blocked|flagged)",
    r"output$|\| output",
    r"(?:image|result|response|output|completion|picture|video)s? (?:was|were|has been|have been|is|are) (?:blocked|filtered|flagged|rejected|removed|withheld|suppressed)(?! (?:due to|because of) (?:the|your) prompt)",
    r"no (?:images?|media|output|result)s? (?:was|were|has been|have been|could be)? ?(?:generated|returned|produced)",
    r"finish reason|after generation|recitation",
    r"生成(?:的|后)?的?(?:图|内容|结果|视频)|输出(?:内容|图)|сгенерированн|результат\w* генерац|готов\w+ изображ",
    r"تولید شده|生成された|생성된",
)

UNAUTHORIZED = any_of(
    r"(?:invalid|incorrect|wrong|missing|expired|revoked|bad|malformed|unknown|unrecognized|inactive|disabled|no|without|provide a valid|valid)(?: or \w+)?[^|]{0,25}\b(?:api ?keys?|(?<!max )token|credentials?|access key|secret key|authori[sz]ation|auth key|x api key|authentication)\b",
    r"\b(?:api ?key|access ?key|access ?token|bearer|(?<!max )token|credentials?|authori[sz]ation(?: header)?)\b[^|]{0,45}(?:invalid|incorrect|not valid|is required|missing|expired|revoked|not found|not provided|disabled|deleted|not recogni|does not exist|doesn't exist|blocked|deactivat|inactive|seems invalid|is wrong|leaked|mismatch)",
    r"unauthori[sz]ed|auth(?:entication)? ?fail|credentials?[^|]{0,20}could not be",
    r"unauthenticated|not authenticated|not logged in",
    r"authentication (?:error|failed|failure|required|token|credentials|fails)",
    r"log ?in (?:fail|required)|could not authenticate|failed to authenticate",
    r"signature (?:does not|mismatch|invalid|not match)",
    r"user is locked|admin lock",
    r"\b(?:account|organization|project|user|workspace|resource|key)\b[^|]{0,30}(?:suspend|deactivat|disabled|banned|locked|terminated|restricted|been blocked)",
    r"account blocked|invalid (?:user|account|client|grant|scope)",
    r"scope (?:is empty|from db|data format)|did not provide an api key|no api key",
    r"неверн\w+[^|]{0,15}(?:ключ|токен|api|авториз|данные)",
    r"(?:недействительн|некорректн|невалидн|отозван|просрочен)\w*[^|]{0,12}(?:ключ|токен|api)",
    r"(?:ключ|токен|api)\w*[^|]{0,30}(?:недействит|отозван|не найден|неверн|заблок|ист[её]к|просроч|не указан|отсутств|невалид|некоррект|отключ)",
    r"не ?авториз|авторизац|аутентификац|аккаунт[^|]{0,20}(?:заблок|приостан|отключ)",
    r"(?:无效|错误|失效|过期|非法)的?[^|]{0,10}(?:令牌|api ?key|key|密钥|token|凭证|身份)",
    r"(?:令牌|密钥|api ?key|token|凭证)[^|]{0,12}(?:无效|过期|不存在|错误|失效|不可用|不正确|未提供|被禁用|已禁用)|未授权|未登录|鉴权",
    r"认证(?:失败|错误)|身份验证|验签|签名[^|]{0,6}(?:错误|无效|失败|不匹配|过期)|账[号户][^|]{0,10}(?:封|禁用|停用|冻结|锁定)",
    r"توکن[^|]{0,35}(?:غیر ?مجاز|نامعتبر|منقضی|اشتباه|معتبر نیست|یافت نشد)",
    r"(?:کلید|api)[^|]{0,25}(?:نامعتبر|اشتباه|معتبر نیست|منقضی|غیرفعال)|احراز هویت|وارد حساب",
    r"غیر مصرح|مفتاح[^|]{0,25}(?:غیر صالح|غیر صحیح)|المصادقة",
    r"認証|無効な(?:api|トークン|キー)|인증|유효하지 않은 (?:api|키|토큰)|clave (?:api )?(?:inválida|no válida)",
    r"no autorizado|nicht autorisiert|ungültiger? (?:api|schlüssel|token)",
    r"clé (?:api )?(?:invalide|non valide)|non autorisé|não autorizado",
    r"geçersiz (?:api|anahtar|token)|yetkisiz",
)

# A wrong model, application or path: every later job of that target would fail alike.
WRONG_TARGET = any_of(
    r"\bmodels?\b[^|]{0,90}(?:not found|does ?n[o']t exist|does not exist|not exist|is not supported|not supported (?:by|for|in|with|on)|is unsupported|not (?:a )?valid|is invalid|unknown|deprecated|retired|decommission|no longer|been removed|shut ?down|discontinued|not allowed|not enabled|is disabled|not recognized|is not available|isn't available)",
    r"(?:unknown|invalid|no such|unsupported|nonexistent|unrecognized|incorrect|wrong) (?:or \w+ )?models?\b(?! (?:output|response|input|parameter))",
    r"model not (?:found|exist|supported)",
    r"no (?:allowed |available )?(?:endpoints?|providers?) (?:found )?(?:for|that|matching|match|support)[^|]{0,30}",
    r"no providers for model",
    r"\b(?:app|application|deployment|engine|endpoint|workflow|pipeline|version|service)\b[^|]{0,50}(?:not found|does ?n[o']t exist|does not exist|not exist|unknown)",
    r"no access to (?:the |this )?model|access to (?:the |this )?model",
    r"do(?:es)? not have access to[^|]{0,30}model",
    r"(?:page|path|route|url|resource path) not found|no route|cannot (?:get|post) /",
    r"unknown (?:url|path|route|endpoint)|invalid url|unrecognized request url",
    r"method not allowed|404 not found|no static resource",
    r"модел\w*[^|]{0,70}(?:не найден|не существует|недоступн|не поддерж|отключ|неизвестн|удален|устарел)",
    r"(?:неизвестн|неверн|несуществующ)\w+ модел|страниц\w* не найден",
    r"метод не (?:найден|поддерж)",
    r"模型[^|]{0,40}(?:不存在|不支持|未找到|已下线|未开通|无权|下架|停用|未知)|(?:不存在|不支持|未知|无效)的?模型",
    r"无权(?:访问|使用)[^|]{0,12}模型|接口不存在",
    r"مدل[^|]{0,40}(?:یافت نشد|پیدا نشد|وجود ندارد|نامعتبر|پشتیبانی نمی|غیرفعال)",
    r"النموذج[^|]{0,30}(?:غیر موجود|غیر صالح|غیر مدعوم)|モデル[^|]{0,20}(?:見つかり|存在し|サポート)",
    r"모델[^|]{0,20}(?:찾을 수|존재하지|지원)",
)

# …unless the missing thing is the job's own.
ONE_JOBS_OWN = any_of(
    r"\b(?:image|file|photo|picture|task|prediction|record|job|upload|attachment|asset|mask|generation|parameter|argument|field|voice|style|size|aspect|resolution|tool|function)s?\b",
    r"файл|изображен|задач|запис|параметр|图片|文件|任务|参数|تصویر|فایل|پارامتر",
)

# Something is wrong with this one request.
INVALID = any_of(
    r"invalid|validation|\bmissing\b|missing required|required (?:field|param|property|argument)",
    r"is required|bad request|unsupported|not supported|must (?:be|not|have|contain|provide)",
    r"malformed|cannot be (?:empty|null|blank)|can't be|unprocessable",
    r"unexpected (?:field|key|keyword|property)|out of range|not allowed|incorrect",
    r"wrong (?:format|type|value)",
    r"unable to (?:parse|decode|process (?:the |your )?(?:image|input|file))",
    r"could not (?:parse|decode|process (?:the |your )?image)",
    r"failed to (?:parse|decode|download|load|fetch) (?:the |your )?(?:image|file|url|input)",
    r"no (?:image|prompt|input)",
    r"not found|no such|does not exist|forbidden|permission|denied|not permitted",
    r"not enough permissions|geo|region|country|already exists|duplicate|expired|precondition",
    r"неверн|недопустим|некорректн|невалидн|обязательн|не найден|не поддержив|запрещ",
    r"доступ (?:запрещ|закрыт|огранич)|нет (?:доступа|прав)|отказано",
    r"ошибка (?:валидации|запроса|в запросе|параметр)|не указан|должн[оаы]? ",
    r"不能为空|参数|无效|非法|不支持|格式(?:错误|不)|缺少|必填|不合法|拒绝|无权限|权限|未找到|不存在|错误的",
    r"نامعتبر|الزامی|غیر ?مجاز|یافت نشد|پیدا نشد|پشتیبانی نمی|نادرست|اشتباه|دسترسی|غیر صالح",
    r"مطلوب|غیر مدعوم|غیر موجود|ممنوع",
    r"無効|不正|必須|見つかりません|잘못된|유효하지|필수|inválid|no válid|obligatori|ungültig|erforderlich|invalide",
    r"requis|geçersiz|zorunlu",
)

TIMEOUT = any_of(
    r"timed?[- ]?out|time ?out|deadline exceeded|took too long",
    r"too long to (?:respond|complete|process)|did not (?:respond|complete) in time",
    r"ист[её]к\w*[^|]{0,15}врем|тайм ?аут|время ожидания|превыш\w+[^|]{0,12}(?:врем|ожидан)|超时",
    r"زمان[^|]{0,25}(?:پایان|تمام|انتظار)|مهلت|مهلة|タイムアウト|時間切れ|시간 ?초과|tiempo de espera",
    r"zeitüberschreitung|délai",
)

# The provider's own fault, without a word on whether the work had begun.
FAULT = any_of(
    r"internal (?:server |database |service )?(?:error|failure|exception)",
    r"server[- ]?(?:side )?(?:error|had an error|exception|fault)|database error",
    r"unexpected (?:error|condition|failure)|unhandled|something went wrong|unknown error",
    r"system error|\boops\b",
    r"bad gateway|gateway error|unavailable|temporarily (?:unable|down|offline)|upstream|gateway",
    r"maintenance|provider (?:returned|error|failed)|out of service|is (?:down|offline)",
    r"connection (?:error|reset|refused|aborted|lost|closed)|disconnected|runner",
    r"внутренн\w+ ошибк|ошибк\w+ (?:сервер|генерац|систем|обработ|провайдер|на сервер)",
    r"временн\w+ (?:недоступ|ошибк|проблем)|недоступ(?:ен|на|но)|техническ\w+ (?:работ|обслуж)",
    r"сбой|неизвестная ошибка",
    r"服务(?:器)?(?:内部)?(?:错误|异常|不可用|暂停|维护)|内部(?:错误|异常)|系统(?:错误|异常|繁忙|维护)|维护|未知错误|上游|网关",
    r"خطای? (?:داخلی|سرور|سیستم|ناشناخته|غیرمنتظره)|سرور[^|]{0,20}(?:در دسترس نیست|پاسخ)",
    r"در دسترس نیست|تعمیر|به روز رسانی|خطأ (?:داخلی|فی)|غیر متاح|غیر متوفر|صیانة",
    r"サーバー|メンテナンス|利用できません|서버|점검|일시적|error interno|no disponible|interner fehler|nicht verfügbar",
    r"wartung|erreur interne|indisponible|erro interno|indisponível|sunucu|kullanılamıyor",
)

# Words of a work that had begun: even under a 400 they keep the charge open.
BEGUN = any_of(
    r"internal (?:server )?error",
    r"(?:down|up)stream (?:service |provider |request |server )?(?:error|fail|timed)",
    r"(?:generation|inference|prediction|execution|task|job) (?:has )?failed|failed to generate",
    r"timed? ?out\b",
    r"ошибк\w+ генерац|не удалось сгенерир|生成失败|超时|خطا در تولید",
)

# Fainter words of the same: what is wrong with the request (INVALID) goes before them.
TROUBLE = any_of(
    r"(?:generation|prediction|execution|processing|inference|request|task|runtime|job|model)[^|]{0,20} failed",
    r"failed to (?:generate|process|complete|create|run|execute|handle)|failure|crash|try again",
    r"please retry|an error (?:occurred|has occurred)",
    r"не удалось|что то пошло не так|попробуйте (?:позже|ещ[её]|снова)|生成失败|(?:请|再)?稍后(?:再|重)?试",
    r"请求失败|任务失败|处理失败|خطا در|مجددا|دوباره (?:تلاش|امتحان)|مشکلی پیش|حاول مرة أخری|エラーが発生|오류",
    r"hata oluştu",
)

# A gateway or edge speaking in plain words: not the provider, so nothing is known.
EDGE_WORDS = any_of(
    r"upstream (?:connect error|request timeout|prematurely|sent)|no healthy upstream",
    r"stream timeout|\berror code: 5\d\d\b|gateway time ?out|bad gateway|client closed request",
    r"origin (?:is )?(?:unreachable|dns)|dns resolution|web server is",
    r"connection timed out\. error|disconnect/reset before headers|cloudflare|cloudfront|nginx",
    r"varnish|envoy|fastly|akamai|service unavailable$|^5\d\d [a-z ]{3,40}$",
    r"no server is available to handle",
)
