"""Which services of apprise a channel may be of, by the scheme of its address. Pure.

Left out are those that post whatever to wherever (``json``, ``xml``, ``form``, ``apprise``: the signed webhook is for
that), those of this machine (``syslog``, desktops), queues, and those that read files of this machine (``vapid``). The
others are held to checked addresses all the same (see ``gate``), since many of them may be somebody's own server.
"""

from __future__ import annotations

SERVICES: dict[str, tuple[str, ...]] = {
    "Slack": ("slack",),
    "Discord": ("discord",),
    "Microsoft Teams": ("workflow", "workflows"),
    "Google Chat": ("gchat",),
    "Mattermost": ("mmost", "mmosts"),
    "Rocket.Chat": ("rocket", "rockets"),
    "Zulip": ("zulip",),
    "Matrix": ("matrix", "matrixs"),
    "Telegram": ("tgram",),
    "Signal": ("signal", "signals"),
    "WhatsApp": ("whatsapp",),
    "Webex": ("webex", "wxteams"),
    "Zoom": ("zoom",),
    "Nextcloud Talk": ("nctalk", "nctalks"),
    "Line": ("line",),
    "DingTalk": ("dingtalk",),
    "Feishu, Lark": ("feishu", "lark"),
    "WeCom": ("wecombot",),
    "Flock": ("flock",),
    "Twist": ("twist",),
    "Zoho Cliq": ("cliq", "zcliq", "zohocliq"),
    "e-mail": ("mailto", "mailtos"),
    "Amazon SES, SNS": ("ses", "sns"),
    "SendGrid": ("sendgrid",),
    "Mailgun": ("mailgun",),
    "Postmark": ("postmark",),
    "Twilio": ("twilio",),
    "Vonage": ("vonage", "nexmo"),
    "PagerDuty": ("pagerduty",),
    "Opsgenie": ("opsgenie",),
    "Splunk On-Call": ("splunk", "victorops"),
    "Squadcast": ("squadcast",),
    "PagerTree": ("pagertree",),
    "incident.io": ("incidentio",),
    "ilert": ("ilert",),
    "GoAlert": ("goalert", "goalerts"),
    "Better Stack": ("betterstack",),
    "Spike": ("spike",),
    "ntfy": ("ntfy", "ntfys"),
    "Gotify": ("gotify", "gotifys"),
    "Pushover": ("pover",),
    "Pushbullet": ("pbul",),
    "Home Assistant": ("hassio", "hassios"),
}
SCHEMES = frozenset(scheme for schemes in SERVICES.values() for scheme in schemes)


def scheme_of(url: str) -> str | None:
    """The scheme of an address of one of the services, None for any other."""
    scheme, mark, _ = url.partition("://")
    return scheme.lower() if mark and scheme.lower() in SCHEMES else None
