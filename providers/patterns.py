"""Word lists: what providers say, in the languages they say it in.

Every pattern runs over folded text (evidence.fold): lower case, "_" and "-" between letters and camelCase opened to spaces,
" | " between parts. `[^|]{0,n}` therefore never reaches over to another sentence of the answer. A list tells what is said;
what follows from it, and which list beats which, is classify.py's.
"""

from __future__ import annotations

import re


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives))


# A request that can never be served as it is: length and size, not speed or money.
NEVER_FITS = _any(
    r"request(?: is)? too large|must be reduced|reduce (?:your message size|the length of)",
    r"(?:maximum|max) (?:context|prompt|input|sequence|content|message) length|context (?:length|window|limit|size)",
    r"(?:prompt|input|request|message|text|context|content|string|conversation|query|url|uri)s? (?:is |are |was )?too (?:long|large|big)",
    r"too many (?:input |prompt )?tokens in (?:the |your )?(?:request|prompt|input)",
    r"exceed\w*[^|]{0,20}(?:model|context|input|prompt)[^|]{0,12} (?:token )?limit",
    r"(?:payload|entity|body|content|file|image|upload|picture|photo|attachment|header fields?)s? (?:is |are )?too (?:large|big)",
    r"exceed\w*[^|]{0,30}(?:(?<!usage )size|length|bytes|\bmb\b|pixels|characters|resolution|dimensions?)\b",
    r"larger than (?:the )?(?:maximum|limit|allowed)|max tokens is too large|extra usage is required",
    r"上下文(?:长度|窗口)|(?:长度|大小|字数)[^|]{0,12}(?:超|过长|过大)|超(?:出|过)[^|]{0,12}(?:长度|大小|字数|上下文)|(?:输入|内容|文本|提示词)过长|(?:文件|图片)过大",
    r"слишком (?:длинн|больш(?:ой|ая|ое) (?:запрос|файл|изображ|размер|объ[её]м))|(?:запрос|файл|текст|промпт|изображение|картинка) слишком больш",
    r"превы\w+[^|]{0,30}(?:длин|размер|контекст|символ)|(?:длин|размер)\w*[^|]{0,25}превыш",
    r"بیش از حد (?:طولانی|بزرگ)|(?:طول|حجم|اندازه)[^|]{0,25}بیش از|خیلی (?:طولانی|بزرگ)|طويل جدا|كبير جدا|کبیر جدا",
    r"長すぎ|大きすぎ|너무 (?:깁|길|큽)|demasiado (?:largo|grande)|zu (?:lang|groß)|trop (?:long|grand|volumineu)",
)

# Refused for what it shows or says.
MODERATION = _any(
    r"content (?:policy|policies|filter|moderation|safety|guideline|violation|restriction|is not allowed|not allowed|blocked|rejected)",
    r"safety (?:system|filter|setting|check|polic|guideline|reason|violation)|image safety|(?:blocked|rejected|refused) (?:by|for|due to) (?:our )?safety",
    r"moderat(?:ion|ed)|sensitive (?:content|word|information|data|topic|material|image)|\b(?:input|output|new|text) (?:new )?sensitive\b|flagged (?:by|as|for)|\bnsfw\b|inappropriate|harmful content",
    r"violat\w*[^|]{0,40}(?:polic|guideline|terms|rules)|against (?:our|the) (?:content |usage )?(?:polic|guideline|rules)",
    r"generated (?:image|content|output|picture|video)s? (?:was|were|is|are|has been|have been) (?:blocked|filtered|rejected|flagged|removed)|responsible ai|data inspection failed|risk (?:control|check)|risk[^|]{0,12}(?:not pass|reject|fail)|prohibited (?:content|use|word)|blocked (?:words?|terms?|prompt|content)|recitation|policy violation|usage polic",
    r"(?:public|well known) (?:figure|person)|copyright(?:ed)? (?:content|material|restrict)|likeness",
    r"敏感|违规|违禁|审核(?:未|不)|内容(?:审核|安全|不合规|违)|不合规|不当内容|不安全|色情|安全(?:系统|策略|过滤|审核)|风控",
    r"модерац|политик\w+ (?:контент|безопас|использ)|запрещ[её]нн\w+ (?:контент|содерж|тем|слов)|(?:недопустим|неприемлем)\w+ (?:контент|содерж|материал)|нарушает (?:правила|политик)|цензур|фильтр\w* (?:контент|безопас)",
    r"نامناسب|(?:خلاف|نقض)[^|]{0,20}(?:قوانین|سیاست|مقررات)|محتوای (?:حساس|غیر ?مجاز|ممنوع|نامناسب)|سیاست(?: های)? محتوا|محتوى (?:غیر|حساس|مخالف)|سیاسة المحتوى",
    r"コンテンツポリシー|不適切|안전 ?정책|콘텐츠 ?정책|política de contenido|inhaltsrichtlin|politique de contenu|política de conteúdo",
)

# Moderation that looked at a picture already drawn: it may have been paid for.
AFTER_DRAWING = _any(
    r"generated (?:image|content|output|result|picture|media)s?|content checker|post (?:img|image|video|text) risk|moderation blocked|image safety|partial (?:image|result|output)",
    r"outputs? (?:image|content|was|were|has|have|is|are|may|data|moderation|filter|safety|blocked|flagged)|output$|\| output",
    r"(?:image|result|response|output|completion|picture|video)s? (?:was|were|has been|have been|is|are) (?:blocked|filtered|flagged|rejected|removed|withheld|suppressed)(?! (?:due to|because of) (?:the|your) prompt)",
    r"no (?:images?|media|output|result)s? (?:was|were|has been|have been|could be)? ?(?:generated|returned|produced)|no (?:media|image) generated|finish reason|after generation|recitation",
    r"生成(?:的|后)?的?(?:图|内容|结果|视频)|输出(?:内容|图)|сгенерированн|результат\w* генерац|готов\w+ изображ|تولید شده|生成された|생성된",
)

# Money: balance, credit, spending caps, arrears.
_MONEY_NOUN = r"(?:balance|credits?|funds?|quota|tokens?|points?|coins?|money|resource package|tokens? balance)"
MONEY = _any(
    rf"insufficient[^|]{{0,40}}\b{_MONEY_NOUN}\b|(?:not|n't) (?:have )?enough (?:\w+ ){{0,3}}{_MONEY_NOUN}\b",
    r"(?:balance|credits?|funds)\b[^|]{0,25}(?:too low|insufficient|exhaust|deplet|used up|not enough|not sufficient|is empty|negative|run out|ran out|below|expired|less than|limit reached)",
    r"(?:exhausted|depleted|used up|used all|consumed|no|zero|out of|lack of|lacks?)(?: of)? (?:your |the |all |any |more |sufficient )*(?:available |remaining |prepaid |account |free |monthly |included |api |more )*(?:balance|credits?|funds)\b(?! card)",
    r"\barrear|can only afford|requires more credits|past due|overdue|payment required|unpaid|outstanding (?:invoice|balance|payment)|payment (?:failed|declined|is due)",
    r"billing (?:hard )?(?:limit|cap|quota|not active|disabled|inactive|issue|problem)|hard limit|spend(?:ing|s)?(?: \w+)? (?:limit|cap|quota)|budget[^|]{0,25}(?:exceed|exhaust|reached|limit|used|spent)|exceed\w*[^|]{0,30}budget",
    r"(?:enable|activate|active|set up|check your) billing (?:is|account|to|for)|billing account|billing is|account is not active",
    r"trial[^|]{0,20}(?:expired|ended|over|exhaust)|subscription[^|]{0,20}(?:expired|ended|inactive|cancell?ed|required)",
    r"(?:prepaid|paid|purchased) (?:units|minutes|images|generations)[^|]{0,20}(?:exhaust|used|deplet)|exceed\w*[^|]{0,25}(?:\b(?:usd|eur|rub)\b|[$€₽]) ?\d|key limit (?:exceeded|reached)|(?:api )?key[^|]{0,20}(?:spend|credit|budget)[^|]{0,10}limit|cost limit",
    r"(?:余额|额度|点数|积分|费用|资金|算力点|账户|配额|金币)[^|]{0,10}(?:不足|不够|用尽|用完|耗尽|已尽|为零|透支)|欠费|资源包|余量不足|免费额度|账单|停服",
    r"недостаточно[^|]{0,20}(?:средств|баланс|кредит|токен|денег|монет|генерац)|(?:баланс|средств|кредит|депозит|сч[её]т)\w*[^|]{0,30}(?:исчерпан|недостат|пуст|отрицат|законч|нулев|не хват)",
    r"исчерпан\w*[^|]{0,30}(?:лимит расход|баланс|средств|бюджет|кредит)|законч\w*[^|]{0,20}(?:токен|средств|кредит|баланс|деньг|генерац)|(?:нет|не хватает) (?:средств|денег|кредит|токен)|(?:бюджет|лимит расход)\w*[^|]{0,40}(?:исчерпан|превыш|достигнут)|превы\w+[^|]{0,20}(?:бюджет|лимит расход)|оплатите|требуется оплата|задолженност",
    r"(?:اعتبار|موجودی|شارژ|کیف پول|سکه|حساب)[^|]{0,40}(?:کافی نیست|کافی نمی|ناکافی|تمام شد|به پایان|پایان یافت|ندارید|ندارد|اتمام|صفر|کمتر)|(?:کمبود|عدم)[^|]{0,12}(?:اعتبار|موجودی)|پرداخت لازم",
    r"رصید[^|]{0,40}(?:غیر کاف|لا یکفی|لا یکفی|نفد|منخفض)|نفد[^|]{0,12}رصید|الدفع مطلوب|رصید غیر",
    r"残高[^|]{0,8}不足|クレジット[^|]{0,8}(?:不足|足り)|支払い|잔액[^|]{0,8}부족|크레[딧디][^|]{0,10}(?:부족|소진)|결제",
    r"saldo (?:insuficiente|insuficiente|bajo|esgotado|insufficiente)|(?:créditos?|crediti|fondos|fondi)[^|]{0,15}(?:insuficient|insufficient|agotad|esaurit|esgotad)|guthaben[^|]{0,30}(?:nicht aus|aufgebraucht|erschöpft|zu niedrig)|(?:solde|crédits?)[^|]{0,15}(?:insuffisant|épuisé)|yetersiz (?:bakiye|kredi)|bakiye[^|]{0,15}yetersiz",
)

# Advice to pay: money, unless the answer is plainly about speed.
MONEY_ADVICE = _any(
    r"\btop(?:ping)? ?up\b|\brecharge|(?:purchase|buy|add) (?:more |extra |additional |some )*(?:credits?|funds|balance)\b|充值|пополн",
    r"(?:افزایش|شارژ)[^|]{0,12}(?:اعتبار|حساب|کنید|نمایید)|شحن|チャージ|충전|recargue|aufladen|rechargez",
)

# A cap on use whose length is not told: beaten by a short explicit wait.
CAP = _any(
    r"quota (?:limit )?(?:has been |was |is )?(?:exceed|exhaust|reached|used|hit|finished|consumed)|(?:current|usage|monthly|weekly|daily|project|free|your|account|user) quota",
    r"exceed\w*[^|]{0,40}\bquota|exhaust\w* (?:your|the|all|its|this|daily|monthly)[^|]{0,30}\bquota|reached[^|]{0,40}\bquota|out of (?:\w+ ){0,3}quota|(?:run|ran|running) out of (?:\w+ ){0,3}(?:generations|requests|images|messages|calls|uses|tokens|units)|no (?:remaining|more|free|available) (?:\w+ )?(?:generations|requests|images|messages|calls|uses|units)\b(?! are)|over quota|no quota|quota (?:not enough|insufficient)|limit: ?0(?![.\d])",
    r"usage limits?|usage cap|fair (?:use|usage)|free (?:tier|plan|usage|trial|quota)[^|]{0,45}(?:limit|exceed|exhaust|reached|used)",
    r"(?:plan|subscription|tier|account|key|credit|monthly|weekly|daily|hourly|session|images?|generations?|allocat\w+|allowance|trial|account's)\s?(?:usage |request |token |image |generation |message )*(?:limit|cap|allowance|allotment)s? ?(?:has |have )?(?:been |was |is |are )?(?:reached|exceed|exhaust|hit|used)",
    r"(?:reached|hit|exceed\w*|exhaust\w*|used up|used all)[^|]{0,30}(?:monthly|weekly|daily|plan|usage|session|free|image|generation|allocat\w+|subscription)[^|]{0,25}(?:limit|cap|quota|allowance|requests|messages|images|generations)",
    r"limit exhausted|(?:set|inference|consumption|expense|cost) limit|allowance[^|]{0,15}(?:used|exceed|exhaust)|maximum (?:number of )?(?:monthly|daily|weekly)",
    r"квот|лимит\w*[^|]{0,30}(?:исчерпан|израсходован|достигнут)|исчерпан\w*[^|]{0,20}лимит|лимит (?:расход|использован|ключа|токенов|тариф|генерац)",
    r"(?:额度|限额|配额|用量|使用上限|次数)[^|]{0,15}(?:超|达|已|上限|用)|(?:超|达到|已达)[^|]{0,15}(?:额度|限额|配额|用量|使用上限|次数上限)",
    r"سهمیه|سقف[^|]{0,20}(?:مصرف|استفاده|مجاز)|(?:محدودیت|حد)[^|]{0,15}(?:مصرف|استفاده)|الحصة|حصتك|حد الاستخدام",
    r"利用上限|使用量の?上限|クォータ|할당량|사용 ?한도|cuota|contingent|kontingent|quota (?:superad|dépass|überschr|excedid|esgotad)|kota",
)

# The window of a limit, where one is told: long ones are quotas, short ones are speed.
LONG_WINDOW = _any(
    r"(?:\b(?:per|each|every|a) (?:model )?(?:per )?|/ ?)(?:calendar )?(?:day|week|month|year)\b|\b(?:daily|weekly|monthly|yearly|annual)\b|\b(?:rpd|tpd|ipd)\b|\b24 ?h(?:ours?|rs?)?\b|billing (?:cycle|period)",
    r"(?:this|next|for the|until) (?:day|week|month|cycle)|\btoday\b|\btomorrow\b|\b(?:[2-9]|1\d|2[0-4]) ?hours? (?:window|limit|usage|period|quota|session)|per (?:[2-9]|1\d|2[0-4]) hours|session (?:usage )?limit",
    r"(?:в|за|на) (?:день|сутки|неделю|месяц|год)|(?:суточн|дневн|недельн|месячн|ежедневн|еженедельн|ежемесячн)|сегодня",
    r"每(?:日|天|周|月|年)|[今当本](?:日|天|周|月)|日(?:限额|配额|额度|上限)|月(?:限额|配额|额度)|周(?:限额|额度)",
    r"روزانه|هفتگی|ماهانه|(?:در|هر) (?:روز|هفته|ماه)|امروز|یومی|أسبوعی|شهری|الیوم",
    r"1日(?:あたり|の)|日次|月次|月間|日間|하루|일일|월간|주간|diari[oa]|mensual|semanal|mensal|täglich|monatlich|wöchentlich|quotidien|journali|mensuel|hebdomadaire|günlük|aylık|haftalık",
)
SHORT_WINDOW = _any(
    r"\b(?:per|each|every|a) (?:second|sec|minute|min|hour|hr)\b|/ ?(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hr?)\b|\b(?:minute|second)ly\b|\b(?:rpm|tpm|rps|qps|ipm|qpm|tps)\b|\d+ ?s(?:ec|econds?)? window",
    r"concurren|simultaneous|in parallel|parallel (?:request|call|job|task|generation)|at (?:the same|one|a) time|\bburst\b|in progress|(?:running|active|pending|ongoing) (?:jobs?|tasks?|requests?|generations?|predictions?)",
    r"(?:в|за) (?:секунду|минуту|час)|одновременн|параллельн|单位时间|每(?:秒|分钟|分|小时)|并发|同时|(?:در|هر) (?:دقیقه|ثانیه|ساعت)|همزمان|هم زمان|متزامن|في الدقیقة|同時|동시|1分",
)

# Too fast.
RATE = _any(
    r"rate ?limit|rate quota|too many (?:requests?|tokens|connections?|calls|concurrent|attempts|queries|jobs|tasks|generations|pending|parallel|simultaneous|running|active)|throttl",
    r"(?:request|call)s?'? (?:rate|frequency|limit)|slow(?:ing)? down|resource(?:s)?(?: has been| have been)? exhausted|exceed\w*[^|]{0,40}(?:\brate\b|requests?\b|calls per|frequency|concurren)|reduce (?:the |your )?(?:request )?(?:rate|frequency)",
    r"too (?:frequent|fast|quick)|rate increased|error code: 1015|please wait before|flood|reached (?:\w+ ){0,2}(?:api|request|call) limit|retry later: rate|limit reached for|requests? (?:per|limit) |concurren\w*[^|]{0,30}(?:limit|exceed|reached|max)|(?:limit|exceed|reached|max)\w*[^|]{0,30}concurren",
    r"频率|频次|限流|限速|流控|过于频繁|太频繁|频繁|请求(?:数|量)?过(?:多|快)|请求太多|速率|并发[^|]{0,12}(?:超|过|达|上限|限制)|(?:超|达到)[^|]{0,12}并发|(?:rpm|tpm|qps)[^|]{0,10}(?:限制|超|上限)",
    r"слишком (?:много|часто|быстр)|превы\w+[^|]{0,40}(?:лимит|количеств|частот|числ|ограничен|скорост|запрос)|частот\w+ запрос|лимит\w* (?:запрос|скорост|частот)|ограничени\w+ (?:скорост|частот|запрос|числ|количеств)|много запросов|одновременн",
    r"درخواست(?: ?های?)?[^|]{0,25}(?:بیش از حد|زیاد|مکرر|پی در پی|متوالی)|(?:تعداد|بیش از)[^|]{0,20}درخواست|محدودیت[^|]{0,12}(?:درخواست|نرخ|سرعت|تعداد)|طلبات کثیرة|(?:عدد|تجاوز)[^|]{0,25}الطلبات|حد المعدل|الکثیر من الطلبات",
    r"レート制限|リクエスト[^|]{0,8}(?:多|制限)|요청[^|]{0,12}(?:많|초과|제한)|demasiad[ao]s (?:solicitudes|peticiones)|zu viele (?:anfragen|requests)|trop de (?:requ|demandes)|muitas (?:solicitações|requisições)|troppe richieste|çok fazla (?:istek|deneme)",
)

# A wait-and-retry 402: credit is only reserved by calls in flight.
IN_FLIGHT = _any(r"in[- ]?flight")

# Told as a matter of this account's plan or rights: waiting or money for calls don't help by themselves.
NOT_IN_PLAN = _any(
    r"not (?:enabled|available|included|supported|allowed)[^|]{0,12} (?:for|in|on|with|by) (?:this|your|the)(?: \w+)? (?:tariff|plan|tier|subscription)",
    r"(?:недоступн|не доступн|не включ|не подключ)\w*[^|]{0,25} (?:тариф|план|подписк)|套餐[^|]{0,12}不(?:支持|包含)|در (?:پلن|طرح|تعرفه)[^|]{0,20}(?:نیست|فعال ن)",
)

# No room or no machine: the work was not begun.
OVERLOAD = _any(
    r"overload|over ?capacity|at (?:full |max(?:imum)? )?capacity|capacity (?:is |has been |was )?(?:exceed|reached|exhaust|limit|constrain|full)|(?:no|insufficient|not enough|out of|lack of|limited|low|without)(?: \w+){0,3} capacity|capacity (?:not |un)available",
    r"high (?:demand|load|volume|traffic)|heavy (?:load|traffic|demand|usage)|peak (?:load|time|hours)|too busy|\b(?:is|are|currently|server|system|service|model|engine|all (?:workers|channels|gpus)) (?:currently |too |very |all )?busy|busy (?:now|at the moment|right now|,? ?(?:please )?(?:try|retry))|\boccupied\b|saturat",
    r"\b(?:is|are|still)(?: currently| still)? (?:loading|starting up|starting|warming up|warming|being loaded|booting|spinning up|not (?:ready|loaded) yet)|model[^|]{0,40} loading|cold start|warming up|scaling up|not yet ready|not ready (?:for|to)\b",
    r"no (?:available|free|idle|live|usable|active)[^|]{0,25}(?:channel|provider|instance|worker|server|upstream|gpu|deployment|node|machine|slot|account|resource|endpoint|replica)|no (?:channel|provider|worker|instance|gpu|deployment|node|machine|slot|replica)s?[^|]{0,40}(?:available|free|online|ready)",
    r"(?:queue|pool) (?:is |was )?full|queue (?:limit|size|length)[^|]{0,20}(?:exceed|reached)|try again when|waiting for capacity|insufficient (?:compute|gpu|hardware) resources?|runner scheduling failure|out of (?:memory|gpus?)",
    r"无可用(?:渠道|实例|资源|节点)?|没有可用|负载(?:已|过|较|饱|高)|繁忙|(?:队列|排队)[^|]{0,6}满|过载|拥挤|算力不足|资源不足|访问量(?:过大|太大)|使用人数(?:过多|较多)|排队(?:人数|过多|已满)|正在加载|爆满|高峰",
    r"перегру[жз]|высок\w+ (?:нагруз|спрос)|больш\w+ нагруз|(?:сервер|модель|сервис|система)\w*[^|]{0,20}занят|нет (?:свободн|доступн)\w+[^|]{0,25}(?:провайдер|канал|сервер|ресурс|мощност|воркер|gpu)|модель[^|]{0,20}загружается|очередь[^|]{0,15}(?:полн|переполн)",
    r"(?:سرور|سرویس|مدل|سیستم)[^|]{0,25}(?:شلوغ|مشغول|پر است|بارگذاری|تحت فشار)|بیش از حد بارگذاری|ترافیک|بار (?:زیاد|بالا|سنگین)|ظرفیت[^|]{0,25}(?:تکمیل|پر|محدود|ندارد|به پایان)|شلوغ|مشغول|مزدحم|ضغط|ازدحام|محمل بشکل زائد",
    r"混雑|混み合|過負荷|ビジー|과부하|혼잡|sobrecarg|überlast|ausgelastet|surcharg|saturé|aşırı yük|yoğun",
)

UNAUTHORIZED = _any(
    r"(?:invalid|incorrect|wrong|missing|expired|revoked|bad|malformed|unknown|unrecognized|inactive|disabled|no|without|provide a valid|valid)(?: or \w+)?[^|]{0,25}\b(?:api ?keys?|(?<!max )token|credentials?|access key|secret key|authori[sz]ation|auth key|x api key|authentication)\b",
    r"\b(?:api ?key|access ?key|access ?token|bearer|(?<!max )token|credentials?|authori[sz]ation(?: header)?)\b[^|]{0,45}(?:invalid|incorrect|not valid|is required|missing|expired|revoked|not found|not provided|disabled|deleted|not recogni|does not exist|doesn't exist|blocked|deactivat|inactive|seems invalid|is wrong|leaked|mismatch)",
    r"unauthori[sz]ed|auth(?:entication)? ?fail|credentials?[^|]{0,20}could not be|unauthenticated|not authenticated|not logged in|authentication (?:error|failed|failure|required|token|credentials|fails)|log ?in (?:fail|required)|could not authenticate|failed to authenticate|signature (?:does not|mismatch|invalid|not match)",
    r"user is locked|admin lock|\b(?:account|organization|project|user|workspace|resource|key)\b[^|]{0,30}(?:suspend|deactivat|disabled|banned|locked|terminated|restricted|been blocked)|account blocked|invalid (?:user|account|client|grant|scope)|scope (?:is empty|from db|data format)|did not provide an api key|no api key",
    r"неверн\w+[^|]{0,15}(?:ключ|токен|api|авториз|данные)|(?:недействительн|некорректн|невалидн|отозван|просрочен)\w*[^|]{0,12}(?:ключ|токен|api)|(?:ключ|токен|api)\w*[^|]{0,30}(?:недействит|отозван|не найден|неверн|заблок|ист[её]к|просроч|не указан|отсутств|невалид|некоррект|отключ)|не ?авториз|авторизац|аутентификац|аккаунт[^|]{0,20}(?:заблок|приостан|отключ)",
    r"(?:无效|错误|失效|过期|非法)的?[^|]{0,10}(?:令牌|api ?key|key|密钥|token|凭证|身份)|(?:令牌|密钥|api ?key|token|凭证)[^|]{0,12}(?:无效|过期|不存在|错误|失效|不可用|不正确|未提供|被禁用|已禁用)|未授权|未登录|鉴权|认证(?:失败|错误)|身份验证|账[号户][^|]{0,10}(?:封|禁用|停用|冻结|锁定)",
    r"توکن[^|]{0,35}(?:غیر ?مجاز|نامعتبر|منقضی|اشتباه|معتبر نیست|یافت نشد)|(?:کلید|api)[^|]{0,25}(?:نامعتبر|اشتباه|معتبر نیست|منقضی|غیرفعال)|احراز هویت|وارد حساب|غیر مصرح|مفتاح[^|]{0,25}(?:غیر صالح|غیر صحیح)|المصادقة",
    r"認証|無効な(?:api|トークン|キー)|인증|유효하지 않은 (?:api|키|토큰)|clave (?:api )?(?:inválida|no válida)|no autorizado|nicht autorisiert|ungültiger? (?:api|schlüssel|token)|clé (?:api )?(?:invalide|non valide)|non autorisé|não autorizado|geçersiz (?:api|anahtar|token)|yetkisiz",
)

# A wrong model, application or path: every later job of that target would fail alike.
WRONG_TARGET = _any(
    r"\bmodels?\b[^|]{0,90}(?:not found|does ?n[o']t exist|does not exist|not exist|is not supported|not supported (?:by|for|in|with|on)|is unsupported|not (?:a )?valid|is invalid|unknown|deprecated|retired|decommission|no longer|been removed|shut ?down|discontinued|not allowed|not enabled|is disabled|not recognized|is not available|isn't available)",
    r"(?:unknown|invalid|no such|unsupported|nonexistent|unrecognized|incorrect|wrong) (?:or \w+ )?models?\b(?! (?:output|response|input|parameter))|model not (?:found|exist|supported)|no (?:allowed |available )?(?:endpoints?|providers?) (?:found )?(?:for|that|matching|match|support)[^|]{0,30}|no providers for model",
    r"\b(?:app|application|deployment|engine|endpoint|workflow|pipeline|version|service)\b[^|]{0,50}(?:not found|does ?n[o']t exist|does not exist|not exist|unknown)|no access to (?:the |this )?model|access to (?:the |this )?model|do(?:es)? not have access to[^|]{0,30}model",
    r"(?:page|path|route|url|resource path) not found|no route|cannot (?:get|post) /|unknown (?:url|path|route|endpoint)|invalid url|unrecognized request url|method not allowed|404 not found|no static resource",
    r"модел\w*[^|]{0,70}(?:не найден|не существует|недоступн|не поддерж|отключ|неизвестн|удален|устарел)|(?:неизвестн|неверн|несуществующ)\w+ модел|страниц\w* не найден|метод не (?:найден|поддерж)",
    r"模型[^|]{0,40}(?:不存在|不支持|未找到|已下线|未开通|无权|下架|停用|未知)|(?:不存在|不支持|未知|无效)的?模型|无权(?:访问|使用)[^|]{0,12}模型|接口不存在",
    r"مدل[^|]{0,40}(?:یافت نشد|پیدا نشد|وجود ندارد|نامعتبر|پشتیبانی نمی|غیرفعال)|النموذج[^|]{0,30}(?:غیر موجود|غیر صالح|غیر مدعوم)|モデル[^|]{0,20}(?:見つかり|存在し|サポート)|모델[^|]{0,20}(?:찾을 수|존재하지|지원)",
)
# …unless the missing thing is the job's own.
ONE_JOBS_OWN = _any(
    r"\b(?:image|file|photo|picture|task|prediction|record|job|upload|attachment|asset|mask|generation|parameter|argument|field|voice|style|size|aspect|resolution|tool|function)s?\b|файл|изображен|задач|запис|параметр|图片|文件|任务|参数|تصویر|فایل|پارامتر",
)

# Something is wrong with this one request.
INVALID = _any(
    r"invalid|validation|\bmissing\b|missing required|required (?:field|param|property|argument)|is required|bad request|unsupported|not supported|must (?:be|not|have|contain|provide)|malformed|cannot be (?:empty|null|blank)|can't be|unprocessable|unexpected (?:field|key|keyword|property)|out of range|not allowed|incorrect|wrong (?:format|type|value)|unable to (?:parse|decode|process (?:the |your )?(?:image|input|file))|could not (?:parse|decode|process (?:the |your )?image)|failed to (?:parse|decode|download|load|fetch) (?:the |your )?(?:image|file|url|input)|no (?:image|prompt|input)",
    r"not found|no such|does not exist|forbidden|permission|denied|not permitted|not enough permissions|geo|region|country|already exists|duplicate|expired|precondition",
    r"неверн|недопустим|некорректн|невалидн|обязательн|не найден|не поддержив|запрещ|доступ (?:запрещ|закрыт|огранич)|нет (?:доступа|прав)|отказано|ошибка (?:валидации|запроса|в запросе|параметр)|не указан|должн[оаы]? ",
    r"不能为空|参数|无效|非法|不支持|格式(?:错误|不)|缺少|必填|不合法|拒绝|无权限|权限|未找到|不存在|错误的",
    r"نامعتبر|الزامی|غیر ?مجاز|یافت نشد|پیدا نشد|پشتیبانی نمی|نادرست|اشتباه|دسترسی|غیر صالح|مطلوب|غیر مدعوم|غیر موجود|ممنوع",
    r"無効|不正|必須|見つかりません|잘못된|유효하지|필수|inválid|no válid|obligatori|ungültig|erforderlich|invalide|requis|geçersiz|zorunlu",
)

TIMEOUT = _any(
    r"timed?[- ]?out|time ?out|deadline exceeded|took too long|too long to (?:respond|complete|process)|did not (?:respond|complete) in time",
    r"ист[её]к\w*[^|]{0,15}врем|тайм ?аут|время ожидания|превыш\w+[^|]{0,12}(?:врем|ожидан)|超时|زمان[^|]{0,25}(?:پایان|تمام|انتظار)|مهلت|مهلة|タイムアウト|時間切れ|시간 ?초과|tiempo de espera|zeitüberschreitung|délai",
)

# The provider's own fault, without a word on whether the work had begun.
FAULT = _any(
    r"internal (?:server |database |service )?(?:error|failure|exception)|server[- ]?(?:side )?(?:error|had an error|exception|fault)|database error|unexpected (?:error|condition|failure)|unhandled|something went wrong|unknown error|system error|\boops\b",
    r"bad gateway|gateway error|unavailable|temporarily (?:unable|down|offline)|upstream|gateway|maintenance|provider (?:returned|error|failed)|out of service|is (?:down|offline)|connection (?:error|reset|refused|aborted|lost|closed)|disconnected|runner",
    r"внутренн\w+ ошибк|ошибк\w+ (?:сервер|генерац|систем|обработ|провайдер|на сервер)|временн\w+ (?:недоступ|ошибк|проблем)|недоступ(?:ен|на|но)|техническ\w+ (?:работ|обслуж)|сбой|неизвестная ошибка",
    r"服务(?:器)?(?:内部)?(?:错误|异常|不可用|暂停|维护)|内部(?:错误|异常)|系统(?:错误|异常|繁忙|维护)|维护|未知错误|上游|网关",
    r"خطای? (?:داخلی|سرور|سیستم|ناشناخته|غیرمنتظره)|سرور[^|]{0,20}(?:در دسترس نیست|پاسخ)|در دسترس نیست|تعمیر|به روز رسانی|خطأ (?:داخلی|فی)|غیر متاح|غیر متوفر|صیانة",
    r"サーバー|メンテナンス|利用できません|서버|점검|일시적|error interno|no disponible|interner fehler|nicht verfügbar|wartung|erreur interne|indisponible|erro interno|indisponível|sunucu|kullanılamıyor",
)
# Words of a work that had begun: even under a 400 they keep the charge open.
BEGUN = _any(
    r"internal (?:server )?error|(?:down|up)stream (?:service |provider |request |server )?(?:error|fail|timed)|(?:generation|inference|prediction|execution|task|job) (?:has )?failed|failed to generate|timed? ?out\b",
    r"ошибк\w+ генерац|не удалось сгенерир|生成失败|超时|خطا در تولید",
)
# Fainter words of the same: what is wrong with the request (INVALID) goes before them.
TROUBLE = _any(
    r"(?:generation|prediction|execution|processing|inference|request|task|runtime|job|model)[^|]{0,20} failed|failed to (?:generate|process|complete|create|run|execute|handle)|failure|crash|try again|please retry|an error (?:occurred|has occurred)",
    r"не удалось|что то пошло не так|попробуйте (?:позже|ещ[её]|снова)|生成失败|(?:请|再)?稍后(?:再|重)?试|请求失败|任务失败|处理失败|خطا در|مجددا|دوباره (?:تلاش|امتحان)|مشکلی پیش|حاول مرة أخری|エラーが発生|오류|hata oluştu",
)

# A gateway or edge speaking in plain words: not the provider, so nothing is known.
EDGE_WORDS = _any(
    r"upstream (?:connect error|request timeout|prematurely|sent)|no healthy upstream|stream timeout|\berror code: 5\d\d\b|gateway time ?out|bad gateway|client closed request|origin (?:is )?(?:unreachable|dns)|dns resolution|web server is|connection timed out\. error|disconnect/reset before headers|cloudflare|cloudfront|nginx|varnish|envoy|fastly|akamai|service unavailable$|^5\d\d [a-z ]{3,40}$|no server is available to handle",
)

# The limit of one model rather than of the account.
ONE_MODEL = _any(
    r"\b(?:for|on|of|this|that|per|the|requested|selected) (?:the |this |that )?(?:requested |selected )?models?\b|\bmodel [^|]{0,60}(?:overload|loading|capacity|busy|high demand)|per model|(?:reached|limit|quota) for (?:gpt|gemini|claude|llama|flux|dall|imagen|sd|grok|qwen|mistral)|requests per \w+ per project per model|model capacity|engine",
    r"(?:该|此|当前|本)模型|модел[иью]|این مدل|برای مدل|النموذج",
)

# Words of machines. They are sure where they stand alone; text may say better (see classify.py).
SURE_QUOTA = _any(
    r"(?:^| \| )(?:insufficient (?:user )?quota|quota exhausted|insufficient balance|insufficient credits?|insufficient funds|billing hard limit reached|billing not active|exceeded current quota(?: error)?|insufficient g1 credits balance|arrearage|budget exceeded|payment required|pre consume token quota failed|access terminated|prepaid bill overdue|postpaid bill overdue|credit balance too low)(?: \| |$)",
)
