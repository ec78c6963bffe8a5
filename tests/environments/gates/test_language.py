"""Switches of language in mid-sentence, and what is foreign without being a switch."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.gates.language import look_alike, switch_of_language


@pytest.mark.parametrize(
    "text",
    [
        "I will look at the 配置文件 and then mend it.",
        "The port is wrong, значит we must change it in the file.",
        "First I read the log file, 然后检查端口是否正确.",
        "We set the port και then start the service.",
        "The service is down لأن the port is taken.",
        "我们需要 check the log file and then 重启服务。",
        "Now run it. The 服务 is still not up because of the port.",
        "I run сheck again.",  # Cyrillic es
        "The pаssword file is missing.",  # Cyrillic a
        "Start the sοurce service.",  # Greek omicron
        "Open the fi\u200ble now.",
        "Open the \u202eelif now.",
    ],
)
def test_a_switch_in_mid_sentence_is_found(text: str) -> None:
    assert switch_of_language(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "Plain English, with a path /srv/app and a number 8080.",
        'The log says "文件不存在", so the file is missing.',
        "The log says `файл не найден`, so it is missing.",
        "It printed «файл не найден» and went on.",
        "It printed “文件不存在” and went on.",
        "Look:\n```\nошибка: порт занят\n```\nso the port is taken.",
        "> ошибка: порт занят\nThe port is taken.",
        "The file is данные.txt and the key is имя_порта.",
        "The folder /srv/данные holds it.",
        "Set Δt to 5 and wait 20 µs; the angle is θ.",
        "naïve café, Zürich, Łódź and Ærø are names.",
        "我们需要用 docker 启动服务。",
        "先检查端口。然后重启服务。",
        "Сначала я проверю порт. Потом перезапущу сервис nginx.",
        "服务を再起動します。",
        "서버를 다시 시작합니다. 漢字도 있다.",
        "I am done ✅ — it works… 👩\u200d💻",
        "Don't, can't, it's: 'fine'.",
        "",
        "...",
    ],
)
def test_what_is_quoted_named_or_wholly_in_one_language_passes(text: str) -> None:
    assert switch_of_language(text) is None


def test_a_disguised_word_in_an_action_is_found_and_a_foreign_file_name_is_not() -> None:
    assert look_alike("сurl http://127.0.0.1") is not None
    assert look_alike("cat данные.txt | grep 'ключ'") is None


def test_a_long_word_or_a_long_run_of_quotes_costs_no_more_than_its_length() -> None:
    started = time.process_time()
    for text in ("ж" * 50_000, "«" * 20_000, "ж'" * 20_000, "a.ж" * 20_000, "`ж" * 20_000):
        switch_of_language(text)
    assert time.process_time() - started < 2.0


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_no_text_whatever_makes_it_raise(text: str) -> None:
    switch_of_language(text)
    look_alike(text)
