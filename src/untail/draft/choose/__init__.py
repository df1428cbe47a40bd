from untail.draft.choose import first  # noqa
