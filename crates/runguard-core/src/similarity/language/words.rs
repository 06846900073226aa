//! The words of other languages that mean little by themselves, and those that mean the same: as far as people ask a help desk, a shop
//! or a search. Written as they are compared: in lower case, without accents.

/// What is known of a language's words.
pub(super) struct Lexicon {
    /// Words that carry no meaning of their own.
    pub(super) small: &'static str,
    /// How, when, where, who and why.
    pub(super) asks: [&'static str; 5],
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) all: &'static str,
    /// Words that deny. In scripts with spaces these are compared before all others, and are small here.
    pub(super) not: &'static str,
    /// Groups of words that mean the same.
    pub(super) synonyms: &'static str,
    /// Words next to what something is done to: turned round, they say the reverse.
    pub(super) towards: &'static str,
}

/// Words of theirs that are English words too, so they do not tell the language.
pub(super) const ENGLISH_TOO: &str = "die war man hat bin mit son pour sur par ser sin fast bald gut wer wird alle des dans plus mes tu est ma ta \
    como come once van pan con para solo no mail mobile photo image prix modifier car auto computer handy website shop store code tv pc app \
    email film foto tarif video support service problem defekt probleme client patron commerce restaurant hotel pain chat four tour \
    emails mails laptop notebook login account apartment smartphone password web error vale ticket bug application reduction expedition \
    modification portable retour doctor";

pub(super) const GERMAN: Lexicon = Lexicon {
    small: "ich du er sie es wir ihr mich mir dich dir uns euch ihm ihn ihnen man mein meine meinen meinem meiner meines dein deine deinen \
        unser unsere unseren euer eure ihre ihren ihrem sein seine seinen der die das den dem des ein eine einen einem einer eines und oder \
        aber auch denn doch mal noch schon jetzt nun gerade so sehr nur bitte danke hallo guten tag moin ist sind war waren bin bist seid \
        habe hab haben hat hatte hast wird werden wurde worden kann kannst konnen konnte konnten koennen darf durfen muss mussen soll sollte \
        will wollen wollte mochte mochten moechte moechten wurden lassen lasst machen mache macht tun tut gibt geben was welche welcher \
        welches welchen dass ob wenn als fur fuer in im am an auf bei beim zu zum zur mit um uber ueber es da hier dort mehr sich \
        brauche braucht brauchen benotige benotigt bekomme bekommen finde finden erhalte erhalten sagen zeigen zeige suche suchen hilfe \
        helfen wissen konnt wurde ja etwas mir",
    asks: ["wie", "wann", "wo wohin woher", "wer wen wem wessen", "warum wieso weshalb weswegen"],
    from: "von vom aus",
    to: "nach",
    all: "alle allen alles jede jeden jeder jedes samtliche",
    not: "nicht kein keine keinen keiner keinem keines nie niemals ohne",
    synonyms: "kosten kostet preis preise teuer; versand lieferung zustellung liefern; paket packchen sendung; handy smartphone mobiltelefon \
        mobiltelefons; laptop notebook; rechnung faktura; kaputt defekt; anmelden einloggen anmeldung login; abmelden ausloggen; email mail \
        emails mails; konto account benutzerkonto; passwort kennwort; kundigen kundigung; umtauschen umtausch; bezahlen zahlen zahlung \
        bezahlung; geschaft laden filiale; offnungszeiten geoffnet; arzt doktor; wohnung apartment; bild foto; gunstig billig preiswert; \
        fehler fehlermeldung; hochste maximale; rabatt nachlass; andern aendern wechseln; schnell rasch; ruckerstattung erstattung",
    towards: "von nach vor fur mit ohne gegen zu zum zur aus",
};

pub(super) const SPANISH: Lexicon = Lexicon {
    small: "yo tu el ella usted nosotros ustedes me te se le lo la les los las nos mi mis tus su sus nuestro nuestra un una unos unas y e o u \
        pero tambien ya muy mas solo por favor gracias hola buenos buenas dias tardes es son era fue ser estar estoy esta estan he ha han \
        hay haber tengo tiene tienen puedo puede puedes pueden podria podrian poder quiero quisiera quiere queria deseo deseo necesito \
        necesita necesitamos debo debe hacer hago hace que cual cuales cuanto cuanta cuantos cuantas en con para al como del de este esta \
        esto ese esa eso busco buscar decir dime digame dame saber sabe si cosa forma manera sale salir deja dejan encuentro encontrar ver \
        llegar llega tarda tardan favor ayuda ayudar mostrar muestrame informacion sobre acerca",
    asks: ["como", "cuando", "donde adonde", "quien quienes", "porque"],
    from: "desde",
    to: "a hacia hasta",
    all: "todo toda todos todas cada",
    not: "no nunca jamas sin ningun ninguna ninguno tampoco",
    synonyms: "precio precios coste costo cuesta cuestan costar vale; celular movil telefono; ordenador computadora computador pc; coche carro \
        auto automovil; correo email mail; contrasena clave password; cambiar modificar cambio; envio entrega; tienda negocio; factura \
        recibo; devolucion devolver devoluciones; reembolso reembolsar; eliminar borrar; medico doctor; piso apartamento departamento; \
        barato economico; boleto billete entrada; error fallo; ayudar asistencia; aplicacion app; iniciar entrar acceder; suscripcion \
        abono; bolsa bolso; oferta descuento; rapido veloz; pelicula film; foto imagen fotografia; trabajo empleo; sitio web pagina",
    towards: "de desde a hacia hasta para con sin contra antes despues",
};

pub(super) const FRENCH: Lexicon = Lexicon {
    small: "je j tu il elle on nous vous ils elles me m te t se s lui leur mon ma mes ton ta tes son sa ses notre nos votre vos leurs le la \
        les l un une des du de d et ou mais aussi donc alors deja tres ne n y en a au aux ce cet cette ces cest c ca qui que qu quoi quel \
        quelle quels quelles est es sont suis etes etait etre ai as avons avez ont ayant avoir peux peut puis pouvez pouvons pourrais \
        pourriez pouvoir veux veut voudrais voudrait vouloir aimerais dois doit faut faire fais fait bonjour bonsoir salut merci svp sil \
        plait besoin estce questce est-ce dans sur par pour avec lors chez cherche chercher trouver trouve donner donnez dire dites \
        montrer montrez savoir si bien prend prendre mettre aide aider possible moyen concernant propos puisje fautil peutil peuton peutelle avezvous pouvezvous estil estelle \
        atil yatil doisje doiton aton etesvous",
    asks: ["comment", "quand", "ou", "qui", "pourquoi"],
    from: "depuis",
    to: "vers",
    all: "tout toute tous toutes chaque",
    not: "pas jamais sans aucun aucune ni",
    synonyms: "prix tarif tarifs coute coutent cout couter combien; portable telephone mobile smartphone; ordinateur pc; voiture auto; courriel \
        email mail mel; modifier changer modification changement; livraison expedition; magasin boutique; facture factures; retour \
        retourner renvoyer; remboursement rembourser; supprimer effacer suppression; medecin docteur; appartement logement; connexion \
        connecter; marche fonctionne marcher fonctionner; resilier resiliation; billet ticket; erreur bug; colis paquet; emploi travail; \
        application appli app; image photo; rapide vite; film; reduction remise; horaire horaires heures; annuler annulation; abonnement \
        forfait",
    towards: "de du depuis a au vers pour avec sans contre avant apres",
};

pub(super) const RUSSIAN: Lexicon = Lexicon {
    small: "я ты он она оно мы вы они меня мне мною тебя тебе его ему ее еи нас нам вас вам их им мои моя мое моего моеи моему моем моих \
        свои своя свое свою своего своеи своих мою ваш ваша ваше ваши вашу вашеи наш наша и или а но же ли бы то это этот эта эти этого \
        у в во на за о об по с со к ко для при про от до из как какои какая какое какие каких какую каким что чтобы можно может могу \
        можете могут хочу хотел хотела хотим нужно нужен нужна нужны надо требуется требуются есть быть был была было были будет является \
        находится пожалуиста спасибо здравствуите привет добрыи день подскажите скажите помогите ищу наити уже еще очень просто только \
        тут там если мною сделать делать получить получение получается узнать времени время даите покажи покажите расскажите который",
    asks: ["как", "когда", "где куда откуда", "кто кому кого чеи", "почему зачем отчего"],
    from: "из от с со",
    to: "в во на до к",
    all: "все всех весь всю каждыи каждая каждую",
    not: "не нет без никогда нельзя ни",
    synonyms: "цена цены цену ценои стоимость стоимости стоит стоят сколько расценки; телефон мобильныи мобильник смартфон; компьютер пк; машина \
        автомобиль авто; изменить поменять сменить изменение смена; доставка доставки доставку; магазин лавка; счет квитанция; возврат \
        вернуть возвратить возврата; удалить стереть удаление; врач доктор; квартира жилье; вход воити войти входа авторизация; аккаунт \
        учетка профиль; почта email имеил; дешевыи недорогои дешевые недорогие; ошибка сбои; билет билеты; работает функционирует; \
        посылка посылки отправление; скидка скидки; быстро скоро; фото фотография картинка; работа вакансия вакансии; купить приобрести; \
        график расписание часы; фильм кино",
    towards: "из от в во на до к за перед после без с",
};

pub(super) const ARABIC: Lexicon = Lexicon {
    small: "انا انت هو هي نحن انتم هم في علي عن من الي مع او ثم ان انه ما ماذا هل كيف يمكن يمكنني يمكنك استطيع اريد ارغب اود احتاج محتاج \
        بحاجه عندي لدي لدينا لديكم عندكم لو سمحت فضلك رجاء شكرا مرحبا السلام عليكم هذا هذه ذلك التي الذي قد لقد تم الان حتي الخاص \
        الخاصه بي بك لي لك ابحث اعرف معرفه اخبرني ارجو الوقت هناك يوجد كان يكون ايضا فقط جدا بخصوص حول كم اي",
    asks: ["كيف", "متي", "اين وين", "من", "لماذا ليش لم"],
    from: "من",
    to: "الي",
    all: "كل جميع",
    not: "لا ليس ليست لم لن بدون دون",
    synonyms: "سعر ثمن تكلفه اسعار; هاتف جوال موبايل هاتفي جوالي; تغيير تعديل اغير غير اعدل تبديل; الغاء الغي; حذف مسح ازاله احذف امسح; شحن توصيل \
        التوصيل الشحن; ايميل بريد; سياره عربيه; حاسوب كمبيوتر; محل متجر; ارجاع استرجاع اعاده ارجع; طبيب دكتور; شقه منزل; رخيص رخيصه \
        ارخص; خطا مشكله عطل; تذكره تذاكر; صوره صور; وظيفه وظائف عمل; حظر محظور; فاتوره فواتير; طلب طلبات طلبيه; مواعيد اوقات; تحميل تنزيل; \
        تفعيل افعل تنشيط; طرد طرود شحنه; عرض عروض خصم",
    towards: "من الي علي قبل بعد مع بدون في",
};

pub(super) const HINDI: Lexicon = Lexicon {
    small: "मैं मैने मैंने हम आप तुम वह यह वो ये मुझे मुझको मुझ मेरा मेरी मेरे अपना अपनी अपने हमारा हमारी हमारे आपका आपकी आपके उसका उसकी इसका इसकी \
        का की के को ने में पर से तक है हैं हूं हो था थी थे गया गई गए गयी रहा रही रहे हुआ हुई हुए होता होती होते होगा होगी कर करना करें करूं करो करने \
        करता करते करती किया की करके सकता सकते सकती सकूं चाहिए चाहता चाहती चाहते क्या कौन कौनसा कौनसी कौनसे सा सी और या भी ही तो कृपया धनयवाद \
        नमसते जी बताइए बताओ बताएं बताना दीजिए दें दो देना लेना लें है लिए के वाला वाली वाले कुछ एक अब अभी जाना जाता जाए मिलेगा पता ढूंढ रहा जानना \
        दिखाओ दिखाएं मदद बारे",
    asks: ["कैसे", "कब", "कहां किधर", "कौन किसने किसका", "कयों"],
    from: "से",
    to: "तक को",
    all: "सब सभी सारे सारा हर",
    not: "नहीं नही मत बिना बगैर",
    synonyms: "कीमत दाम मूलय कितने; फोन मोबाइल मोबाईल; बदलना बदलें बदलूं बदलने बदल चेंज; रदद कैंसिल कैंसल; हटाना हटाएं हटाऊं डिलीट मिटाना मिटाएं; दुकान \
        सटोर; बिल रसीद; वापस वापसी रिटरन; रिफंड धनवापसी; डॉकटर चिकितसक; ससता ससती ससते किफायती; गाड़ी कार; भुगतान पेमेंट; खाता अकाउंट; समय टाइम; \
        नौकरी जॉब; शुलक फीस चारज; चालू एकटिवेट; कंपयूटर पीसी; ईमेल मेल; फोटो तसवीर चितर; गलती एरर",
    towards: "से तक को",
};

pub(super) const CHINESE: Lexicon = Lexicon {
    small: "我 我的 我们 你 您 你们 你的 您的 你们的 他 她 它 的 地 得 了 吗 呢 吧 啊 呀 是 是什么 什么 哪些 哪个 哪种 请 请问 请教 麻烦 谢谢 你好 您好 \
        想 想要 要 需要 可以 可不可以 能 能不能 能够 会不会 是不是 有没有 有 一个 一下 一张 一件 一位 一份 个 请帮我 帮我 帮忙 告诉我 知道 想知道 查询 \
        查一下 看看 关于 这 这个 那 那个 被 把 给 在 就 才 还 也 都 很 又 而 和 与 及 用 多 要多 有多 现在 目前 为 多久 多长 啥 才能 怎么办",
    asks: ["怎么 怎样 如何 怎么样 咋", "什么时候 何时 几点 几时", "哪里 在哪里 哪儿 在哪 在哪儿 何处", "谁", "为什么 为何 怎么会 为啥"],
    from: "从",
    to: "到 去 往",
    all: "全部 所有 每个",
    not: "不 没 没有 无 无法 未 别 勿 不能 不可以 不了 不到 不会",
    synonyms: "价格 多少钱 价钱 费用 收费 资费; 修改 更改 变更 更换 改 换; 手机 移动电话; 丢失 丢 遗失; 联系 联络; 电脑 计算机; 账号 账户 帐户 帐号; 登录 登入 登陆; \
        密码 口令; 邮箱 邮件地址 电子邮箱; 快递 包裹; 付款 支付 付钱; 退款 退钱; 删除 删掉; 注销 销户; 优惠券 优惠码; 便宜 实惠; 医生 大夫; 软件 应用 程序; 照片 相片; \
        打折 折扣; 营业时间 开门时间; 图片 图像; 招聘 招人; 客服 人工客服; 公司 企业",
    towards: "从 到 去 往 比 向",
};

pub(super) const JAPANESE: Lexicon = Lexicon {
    small: "を が は に へ で と も の か ね よ や な ん です でした でしょうか でしょう ですか だ だった である ます ました ましょう ますか する します しました した して \
        しています している しますか するには したい したいです したいのですが したいんですが されました された される されて すれば いい いいですか よい できる できます \
        できますか ことは こと ことが って た て たい たいです ください 下さい ほしい 欲しい 欲しいです ほしいです お願い お願いします おねがいします 教えて \
        教えてください 教えて下さい 知りたい 知りたいです 探して 探している 探しています 私 私の 僕 僕の 自分の あります ありますか ある にある について とは という \
        何 何ですか 何時 何時ですか どの どのくらい どれくらい どのぐらい くらい これ それ あの この その のですが んですが のですか のは には では ので \
        かかります かかりますか かかる 取りたい 取る 行う 行いたい いる います ている ています お ご 御 いただけますか もらえますか とき 場合 れた れる られる せん なさい",
    asks: [
        "どう どうすれば どうやって どのように 方法 やり方 仕方",
        "いつ いつまで いつから",
        "どこ どちら",
        "だれ 誰",
        "なぜ どうして 何故 なんで",
    ],
    from: "から",
    to: "まで 行き",
    all: "すべて 全て 全部",
    not: "ない ません なし ないです ません ず ませんでした なかった できない できません ないのですが ないんですが",
    synonyms: "料金 値段 価格 費用 金額; 変更 変え 変える 変えたい 変えて; 携帯 スマホ スマートフォン 携帯電話; 解約 退会; 削除 消す 消したい; 返品 返送; 払い戻し 返金; \
        支払い 支払 払い; 荷物 小包; 配達 配送 お届け; アカウント 口座; メール 電子メール; パソコン コンピューター コンピュータ pc; 医者 医師; 申し込み 申込; 問い合わせ 問合せ; \
        予約 ブッキング; 写真 画像; 安い 格安; キャンセル 取り消し 取消; 確認 チェック; ログイン サインイン; 購入 買う 買いたい; 求人 仕事; 店 店舗",
    towards: "から まで へ より",
};
