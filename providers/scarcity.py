"""Word lists of what has run out: money, quota, speed, room. In the languages that providers say it in.

For the conventions see patterns.py; which list beats which is classify.py's to say.
"""

from __future__ import annotations

from providers.patterns import any_of

# Words of machines. They are sure where they stand alone; text may say better (see classify.py).
SURE_QUOTA = any_of(
    r"(?:^| \| )(?:insufficient (?:user )?quota|quota exhausted|insufficient balance|insufficient credits?|insufficient funds|billing hard limit reached|billing not active|exceeded current quota(?: error)?|insufficient g1 credits balance|arrearage|budget exceeded|payment required|pre consume token quota failed|access terminated|prepaid bill overdue|postpaid bill overdue|credit balance too low)(?: \| |$)",
)

# Money: balance, credit, spending caps, arrears.
_MONEY_NOUN = r"(?:balance|credits?|funds?|quota|tokens?|points?|coins?|money|resource package|tokens? balance)"
MONEY = any_of(
    r"insufficient (?!permission|privilege|right|scope|access|capacity|resource|memory|gpu|compute|storage|data|detail)\w+ to (?:complete|run|process|perform|make|generate|continue|use)",
    rf"insufficient[^|]{{0,40}}\b{_MONEY_NOUN}\b|(?:not|n't) (?:have )?enough (?:\w+ ){{0,3}}{_MONEY_NOUN}\b",
    r"(?:balance|credits?|funds)\b[^|]{0,25}(?:too low|insufficient|exhaust|deplet|used up|not enough|not sufficient|is empty|negative|run out|ran out|below|expired|less than|limit reached)",
    r"(?:exhausted|depleted|used up|used all|consumed|no|zero|out of|lack of|lacks?)(?: of)? (?:your |the |all |any |more |sufficient )*(?:available |remaining |prepaid |account |free |monthly |included |api |more )*(?:balance|credits?|funds|points|coins|extra usage)\b(?! card)",
    r"(?:no|missing|without a?) (?:valid )?(?:payment method|credit card)",
    r"(?:unpaid|pay) (?:past )?(?:bills?|invoices?)|non ?payment|(?:low|negative|zero) balance",
    r"balance (?:is )?(?:low|zero)\b",
    r"\barrear|can only afford|requires more credits|past due|overdue|payment required|unpaid",
    r"outstanding (?:invoice|balance|payment)|payment (?:failed|declined|is due)",
    r"billing (?:hard )?(?:limit|cap|quota|not active|disabled|inactive|issue|problem)",
    r"hard limit|spend(?:ing|s)?(?: \w+)? (?:limit|cap|quota)",
    r"budget[^|]{0,25}(?:exceed|exhaust|reached|limit|used|spent)|exceed\w*[^|]{0,30}budget",
    r"(?:enable|activate|active|set up|check your) billing (?:is|account|to|for)|billing account",
    r"billing is|account is not active",
    r"trial[^|]{0,20}(?:expired|ended|over|exhaust)",
    r"(?:subscription|membership)[^|]{0,20}(?:expired|ended|inactive|not active|cancell?ed|lapsed|required)",
    r"no active (?:subscription|plan)",
    r"(?:prepaid|paid|purchased) (?:units|minutes|images|generations)[^|]{0,20}(?:exhaust|used|deplet)",
    r"exceed\w*[^|]{0,25}(?:\b(?:usd|eur|rub)\b|[$€₽]) ?\d|key limit (?:exceeded|reached)",
    r"(?:api )?key[^|]{0,20}(?:spend|credit|budget)[^|]{0,10}limit|cost limit",
    r"(?:余额|额度|点数|积分|费用|资金|算力点|账户|配额|金币)[^|]{0,10}(?:不足|不够|用尽|用完|耗尽|已尽|为零|透支)|欠费|资源包|余量(?:不足|已)",
    r"免费额度|账单|停服|停机|续费|(?:订阅|会员|套餐|资源包)[^|]{0,6}(?:过期|到期|失效|用尽|用完)|费用不足",
    r"недостаточно[^|]{0,20}(?:средств|баланс|кредит|токен|денег|монет|генерац)",
    r"(?:баланс|средств|кредит|депозит|сч[её]т)\w*[^|]{0,30}(?:исчерпан|недостат|пуст|отрицат|законч|нулев|не хват)",
    r"исчерпан\w*[^|]{0,30}(?:лимит расход|баланс|средств|бюджет|кредит)",
    r"законч\w*[^|]{0,20}(?:токен|средств|кредит|баланс|деньг|генерац)",
    r"(?:нет|не хватает) (?:средств|денег|кредит|токен)",
    r"(?:бюджет|лимит расход)\w*[^|]{0,40}(?:исчерпан|превыш|достигнут)",
    r"превы\w+[^|]{0,20}(?:бюджет|лимит расход)|оплатите|(?:требуется|необходима) оплата",
    r"не оплачен|задолженност",
    r"(?:подписк|тариф|пакет)\w*[^|]{0,25}(?:ист[её]к|законч|заверш|не ?актив|исчерпан|не оплачен)",
    r"нет активной подписки|баланс\w*[^|]{0,12}(?:равен нулю|ноль|0 ?(?:руб|[₽$]))",
    r"пробн\w+ (?:период|доступ)[^|]{0,20}(?:законч|ист[её]к)|законч\w+ пробн",
    r"продлите (?:подписк|тариф)",
    r"(?:اعتبار|موجودی|شارژ|کیف پول|سکه|حساب)[^|]{0,40}(?:کافی نیست|کافی نمی|ناکافی|تمام شد|به پایان|پایان یافت|ندارید|ندارد|اتمام|صفر|کمتر)",
    r"(?:کمبود|عدم)[^|]{0,12}(?:اعتبار|موجودی)|پرداخت لازم",
    r"(?:اشتراک|بسته|پلن)[^|]{0,25}(?:منقضی|به پایان|تمام شد)|تمدید (?:اشتراک|بسته)",
    r"رصید[^|]{0,40}(?:غیر کاف|لا یکفی|لا یکفی|نفد|منخفض)|نفد[^|]{0,12}رصید|الدفع مطلوب|رصید غیر",
    r"(?:انتهی|انتهت|انتهاء)[^|]{0,12}(?:اشتراک|رصید)|نفدت|لا یوجد رصید",
    r"残高[^|]{0,8}不足|クレジット[^|]{0,8}(?:不足|足り)|支払い|잔액[^|]{0,8}부족|크레[딧디][^|]{0,10}(?:부족|소진)|결제",
    r"구독[^|]{0,6}만료|残高が足り",
    r"saldo (?:insuficiente|insuficiente|bajo|esgotado|insufficiente)",
    r"(?:créditos?|crediti|fondos|fondi)[^|]{0,15}(?:insuficient|insufficient|agotad|esaurit|esgotad)",
    r"guthaben[^|]{0,30}(?:nicht aus|aufgebraucht|erschöpft|zu niedrig)",
    r"(?:solde|crédits?)[^|]{0,15}(?:insuffisant|épuisé)|yetersiz (?:bakiye|kredi)",
    r"bakiye[^|]{0,15}yetersiz|kredi\w*[^|]{0,10}(?:bitti|kalmadı|tükendi)",
    r"sin (?:saldo|créditos|fondos)|sem (?:saldo|créditos)|kein(?:e)? (?:guthaben|credits)",
    r"(?:suscripción|assinatura|abonnement|abonelik)\w*[^|]{0,20}(?:vencid|caducad|expirad|expiré|abgelaufen|sona er)",
)

# Advice to pay: money, unless the answer is plainly about speed.
MONEY_ADVICE = any_of(
    r"\btop(?:ping)? ?up\b|\brecharge",
    r"(?:purchase|buy|add|enter|update) (?:more |extra |additional |some |an? |your |valid )*(?:credits?|funds|balance|payment method|credit card)\b",
    r"充值|пополн",
    r"(?:افزایش|شارژ)[^|]{0,12}(?:اعتبار|حساب|کنید|نمایید)|شحن|チャージ|충전|recargue|aufladen",
    r"rechargez",
)

# Told as a matter of this account's plan or rights: waiting or money for calls don't help by themselves.
NOT_IN_PLAN = any_of(
    r"not (?:enabled|available|included|supported|allowed)[^|]{0,12} (?:for|in|on|with|by) (?:this|your|the)(?: \w+)? (?:tariff|plan|tier|subscription)",
    r"(?:requires?|needs?|only (?:available )?(?:on|in|for|to|with)) (?:an? |the |our )?(?:pro|paid|plus|premium|business|team|enterprise|higher|basic|standard)\b[^|]{0,12} ?(?:plans?|tiers?|subscri\w+|accounts?|users?)",
    r"not available (?:on|in|for) (?:the |your )?free (?:tier|plan)",
    r"feature (?:is |has been )?(?:currently )?(?:disabled|not enabled|not available)",
    r"(?:недоступн|не доступн|не включ|не подключ)\w*[^|]{0,25} (?:тариф|план|подписк)",
    r"套餐[^|]{0,12}不(?:支持|包含)|در (?:پلن|طرح|تعرفه)[^|]{0,20}(?:نیست|فعال ن)",
)

# A wait-and-retry 402: credit is only reserved by calls in flight.
IN_FLIGHT = any_of(r"in[- ]?flight")

# A cap on use whose length is not told: beaten by a short explicit wait.
CAP = any_of(
    r"quota (?:limit )?(?:has been |was |is )?(?:exceed|exhaust|reached|used|hit|finished|consumed)",
    r"(?:current|usage|monthly|weekly|daily|project|free|your|account|user) quota",
    r"exceed\w*[^|]{0,40}\bquota",
    r"exhaust\w* (?:your|the|all|its|this|daily|monthly)[^|]{0,30}\bquota",
    r"reached[^|]{0,40}\bquota|out of (?:\w+ ){0,3}quota",
    r"(?:run|ran|running) out of (?:\w+ ){0,3}(?:generations|requests|images|messages|calls|uses|tokens|units)",
    r"no (?:remaining|more|free|available) (?:\w+ )?(?:generations|requests|images|messages|calls|uses|units)\b(?! are)",
    r"over quota|no quota|quota (?:is )?(?:not enough|insufficient)|limit: ?0(?![.\d])",
    r"usage limits?|usage cap|usage[^|]{0,15} exceeds?\b[^|]{0,12}limit|fair (?:use|usage)",
    r"free (?:tier|plan|usage|trial|quota)[^|]{0,45}(?:limit|exceed|exhaust|reached|used)",
    r"(?:plan|subscription|tier|account|key|credit|monthly|weekly|daily|hourly|session|images?|generations?|allocat\w+|allowance|trial|account's)\s?(?:usage |request |token |image |generation |message )*(?:limit|cap|allowance|allotment)s? ?(?:has |have )?(?:been |was |is |are )?(?:reached|exceed|exhaust|hit|used)",
    r"(?:reached|hit|exceed\w*|exhaust\w*|used up|used all)[^|]{0,30}(?:monthly|weekly|daily|plan|usage|session|free|image|generation|allocat\w+|subscription)[^|]{0,25}(?:limit|cap|quota|allowance|requests|messages|images|generations)",
    r"limit exhausted|(?:set|inference|consumption|expense|cost) limit",
    r"allowance[^|]{0,15}(?:used|exceed|exhaust)|maximum (?:number of )?(?:monthly|daily|weekly)",
    r"total (?:\w+ )?(?:limit|quota)",
    r"(?:hit|reached|exceed\w*) your (?!rate|request|concurr|burst|rpm|tpm)(?:\w+ )?limit",
    r"\ballocation\b|allotment",
    r"used (?:up )?all (?:of )?your (?:\w+ ){0,3}(?:images|generations|requests|messages|uses|videos)",
    r"квот|лимит\w*[^|]{0,30}(?:исчерпан|израсходован|достигнут)",
    r"(?:израсходовал|использовал|исчерпал|потратил)\w* (?:все|весь)",
    r"(?:исчерпан|исчерпал|израсходовал|достиг)\w*[^|]{0,25}лимит",
    r"лимит (?:расход|использован|ключа|токенов|тариф|генерац)",
    r"(?:额度|限额|配额|用量|使用上限|次数)[^|]{0,15}(?:超|达|已|上限|用)",
    r"(?:超|达到|已达)[^|]{0,15}(?:额度|限额|配额|用量|使用上限|次数上限)",
    r"رایگان[^|]{0,25}(?:پایان|تمام)|ظرفیت (?:روزانه|هفتگی|ماهانه)|سهمیه",
    r"سقف[^|]{0,20}(?:مصرف|استفاده|مجاز)|(?:محدودیت|حد)[^|]{0,15}(?:مصرف|استفاده)|الحصة|حصتك",
    r"حد الاستخدام",
    r"利用上限|使用量の?上限|クォータ|할당량|사용 ?한도|cuota|contingent|kontingent",
    r"(?:tages|wochen|monats|nutzungs)limit|quota (?:superad|dépass|überschr|excedid|esgotad)",
    r"kota",
)

# The window of a limit, where one is told: long ones are quotas, short ones are speed.
LONG_WINDOW = any_of(
    r"(?:\b(?:per|each|every|a) (?:model )?(?:per )?|/ ?)(?:calendar )?(?:day|week|month|year)\b",
    r"\b(?:daily|weekly|monthly|yearly|annual)\b|\b(?:rpd|tpd|ipd)\b|\b24 ?h(?:ours?|rs?)?\b",
    r"billing (?:cycle|period)",
    r"(?:this|next|for the|until) (?:day|week|month|cycle)|\btoday\b|\btomorrow\b",
    r"\b(?:[2-9]|1\d|2[0-4]) ?hours? (?:window|limit|usage|period|quota|session)",
    r"per (?:[2-9]|1\d|2[0-4]) hours|session (?:usage )?limit",
    r"(?:в|за|на) (?:день|сутки|неделю|месяц|год)",
    r"(?:суточн|дневн|недельн|месячн|ежедневн|еженедельн|ежемесячн)|сегодня",
    r"每(?:日|天|周|月|年)|[今当本](?:日|天|周|月)|日(?:限额|配额|额度|上限)|月(?:限额|配额|额度)|周(?:限额|额度)",
    r"روزانه|هفتگی|ماهانه|(?:در|هر) (?:روز|هفته|ماه)|امروز|یومی|أسبوعی|شهری|الیوم",
    r"1日(?:あたり|の)|日次|月次|月間|日間|하루|일일|월간|주간|diari[oa]|mensual|semanal|mensal|täglich|tageslimit",
    r"wochenlimit|monatslimit|monatlich|wöchentlich|quotidien|journali|mensuel|hebdomadaire",
    r"günlük|aylık|haftalık",
)

PER_MOMENT = any_of(
    r"\b(?:per|each|every|a) (?:second|sec|minute|min|hour|hr)\b",
    r"/ ?(?:seconds?|secs?|s|minutes?|mins?|m|hours?|hr?)\b|\b(?:minute|second)ly\b",
    r"\b(?:rpm|tpm|rps|qps|ipm|qpm|tps)\b|\d+ ?s(?:ec|econds?)? window",
    r"\d+ (?:second|minute|min)s? (?:\w+ ){0,2}(?:limit|window|quota|cap)",
    r"(?:в|за) (?:\d+ )?(?:секунд|минут|час)|单位时间|每(?:秒|分钟|分|小时)|\d ?(?:秒|分钟|小时)[内內]|1分",
    r"(?:در|هر) (?:\d+ )?(?:دقیقه|ثانیه|ساعت)|فی (?:الدقیقة|الثانیة|الساعة)",
    r"por (?:minuto|segundo)|pro (?:minute|sekunde)|par (?:minute|seconde)|al minuto|dakikada",
    r"saniyede|분당|초당|毎(?:分|秒)",
)

# A limit on what runs at once, or on how fast: short without a time being told.
AT_ONCE = any_of(
    r"concurren|simultaneous|in parallel|parallel (?:request|call|job|task|generation)",
    r"at (?:the same|one|a) time|\bburst\b|in progress",
    r"(?:running|active|pending|ongoing) (?:jobs?|tasks?|requests?|generations?|predictions?)",
    r"\bworker\b|too (?:fast|frequent|quick)",
    r"одновременн|параллельн|частот|并发|同时|频率|频繁|速率|همزمان|هم زمان|متزامن|同時|동시|simult[aá]ne",
    r"gleichzeitig|eş ?zamanlı",
)

# Too fast.
RATE = any_of(
    r"rate ?limit|rate quota|rate exceeded|burst (?:capacity|limit|rate)",
    r"too many (?:requests?|tokens|connections?|calls|concurrent|attempts|queries|jobs|tasks|generations|pending|parallel|simultaneous|running|active)",
    r"throttl",
    r"(?:request|call)s?'? (?:rate|frequency|limit)|slow(?:ing)? down",
    r"resource(?:s)?(?: has been| have been)? exhausted",
    r"exceed\w*[^|]{0,40}(?:\brate\b|requests?\b|calls per|frequency|concurren)",
    r"reduce (?:the |your )?(?:request )?(?:rate|frequency)",
    r"too (?:frequent|fast|quick)|rate increased|error code: 1015|please wait before|flood",
    r"reached (?:\w+ ){0,2}(?:api|request|call) limit|retry later: rate|limit reached for",
    r"requests? (?:per|limit) |concurren\w*[^|]{0,30}(?:limit|exceed|reached|max)",
    r"(?:limit|exceed|reached|max)\w*[^|]{0,30}concurren",
    r"频率|频次|限流|限速|流控|过于频繁|太频繁|频繁|请求(?:数|量)?过(?:多|快)|请求太多|速率|并发[^|]{0,12}(?:超|过|达|上限|限制)",
    r"(?:超|达到)[^|]{0,12}并发|(?:rpm|tpm|qps)[^|]{0,10}(?:限制|超|上限)",
    r"слишком (?:много(?! времени)|часто|быстр)",
    r"превы\w+[^|]{0,40}(?:лимит|количеств|частот|числ|ограничен|скорост|запрос)",
    r"частот\w+ запрос|лимит\w* (?:запрос|скорост|частот)",
    r"ограничени\w+ (?:скорост|частот|запрос|числ|количеств)|много запросов|одновременн",
    r"درخواست(?: ?های?)?[^|]{0,25}(?:بیش از حد|زیاد|مکرر|پی در پی|متوالی)",
    r"(?:تعداد|بیش از)[^|]{0,20}درخواست|محدودیت[^|]{0,12}(?:درخواست|نرخ|سرعت|تعداد)|طلبات کثیرة",
    r"(?:عدد|تجاوز)[^|]{0,25}الطلبات|حد المعدل|الکثیر من الطلبات",
    r"レート制限|リクエスト[^|]{0,8}(?:多|制限)|요청[^|]{0,12}(?:많|초과|제한)",
    r"demasiad[ao]s (?:solicitudes|peticiones)|zu viele (?:anfragen|requests)",
    r"trop de (?:requ|demandes)|muitas (?:solicitações|requisições)|troppe richieste",
    r"çok fazla (?:istek|deneme)",
)

# No room or no machine: the work was not begun.
OVERLOAD = any_of(
    r"overload|over ?capacity|at (?:full |max(?:imum)? )?capacity",
    r"capacity (?:is |has been |was |temporarily )*(?:exceed|reached|exhaust|limit|constrain|full)",
    r"(?:no|insufficient|not enough|out of|lack of|limited|low|without)(?: \w+){0,3} capacity",
    r"capacity (?:not |un)available",
    r"high (?:demand|load|volume|traffic)|heavy (?:load|traffic|demand|usage)",
    r"peak (?:load|time|hours)|too busy",
    r"\b(?:is|are|currently|server|system|service|model|engine|all (?:workers|channels|gpus)) (?:currently |too |very |all )?busy",
    r"busy (?:now|at the moment|right now|,? ?(?:please )?(?:try|retry))|\boccupied\b|saturat",
    r"\bdegraded\b|(?:all|every)(?: \w+){1,4} (?:busy|occupied|in use)",
    r"(?:unusually|very|extremely) high",
    r"\b(?:is|are|still)(?: currently| still)? (?:loading|starting up|starting|warming up|warming|being loaded|booting|spinning up|not (?:ready|loaded) yet)",
    r"model[^|]{0,40} loading|cold start|warming up|scaling up|not yet ready",
    r"not ready (?:for|to)\b",
    r"no (?:available|free|idle|live|usable|active|valid|healthy(?! upstream))[^|]{0,25}(?:executor|channel|provider|instance|worker|server|upstream|gpu|deployment|node|machine|slot|account|resource|endpoint|replica)",
    r"no (?:channel|provider|worker|instance|gpu|deployment|node|machine|slot|replica)s?[^|]{0,40}(?:available|free|online|ready)",
    r"(?:queue|pool) (?:is |was )?full|queue (?:limit|size|length)[^|]{0,20}(?:exceed|reached)",
    r"try again when|waiting for capacity|insufficient (?:compute|gpu|hardware) resources?",
    r"runner scheduling failure|out of (?:memory|gpus?)",
    r"可用渠道(?:不存在|不足)|(?:资源|算力)紧张|(?:服务器?|系统|模型)(?:正|太|很)?忙|无可用(?:渠道|实例|资源|节点)?|没有可用",
    r"负载(?:已|过|较|饱|高)|繁忙|(?:队列|排队)[^|]{0,6}满|过载|拥挤|算力不足|资源不足|访问量(?:过大|太大)|使用人数(?:过多|较多)",
    r"排队(?:人数|过多|已满)|正在加载|爆满|高峰",
    r"перегру[жз]|высок\w+ (?:нагруз|спрос)|больш\w+ нагруз|\bзанят[аоы]?\b|не справля\w+",
    r"нет (?:свободн|доступн)\w+[^|]{0,25}(?:провайдер|канал|сервер|ресурс|мощност|воркер|gpu)",
    r"модель[^|]{0,20}загружается|очередь[^|]{0,15}(?:полн|переполн)",
    r"(?:سرور|سرویس|مدل|سیستم)[^|]{0,25}(?:شلوغ|مشغول|پر است|بارگذاری|تحت فشار)",
    r"بیش از حد بارگذاری|ترافیک|بار (?:زیاد|بالا|سنگین)|در حال استفاده",
    r"ظرفیت[^|]{0,25}(?:تکمیل|پر|محدود|ندارد|به پایان)|شلوغ|مشغول|مزدحم|ضغط|ازدحام",
    r"محمل بشکل زائد",
    r"混雑|混み合|[過高]負荷|アクセスが集中|ビジー|과부하|혼잡|사용량이 많|sobrecarg|sobrecarreg|saturad|ocupad[oa]",
    r"alta demanda|überlast|ausgelastet|hohe (?:auslastung|nachfrage|last)|surcharg|saturé",
    r"forte demande|sovraccaric|aşırı yük|yoğun|meşgul|quá tải|sibuk",
)

# The limit of one model rather than of the account.
ONE_MODEL = any_of(
    r"\b(?:for|on|of|this|that|per|the|requested|selected) (?:the |this |that )?(?:requested |selected )?models?\b",
    r"\bmodel [^|]{0,60}(?:overload|loading|capacity|busy|high demand)|per model",
    r"(?:reached|limit|quota) for (?:gpt|gemini|claude|llama|flux|dall|imagen|sd|grok|qwen|mistral)",
    r"requests per \w+ per project per model|model capacity|engine",
    r"(?:该|此|当前|本)模型|модел[иью]|این مدل|برای مدل|النموذج",
)

# Told so outright that even a 500 or 502 around it was a refusal, and no work.
REFUSED_OUTRIGHT = any_of(
    r"rate ?limit (?:reached|exceeded|hit|error)|too many requests|throttl|quota exceeded",
    r"exceeded (?:your|the) (?:current )?quota",
    r"insufficient[^|]{0,20}(?:balance|credit|fund|quota)|payment required",
    r"(?:reaching|reached|exceeded) (?:the |your )?(?:monthly )?spending limit",
    r"(?:余额|额度|积分)不足|欠费|недостаточно средств|превышен лимит запросов",
    r"(?:اعتبار|موجودی)[^|]{0,15}کافی ن",
)
