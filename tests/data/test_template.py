"""The paper's template and the positions of images in it."""

from dataclasses import replace

import jinja2
import pytest
from PIL import Image

from pivot.data import template
from pivot.data.template import ImagePlace, PromptStyle
from pivot.errors import UserError
from pivot.tiny import procedural
from pivot.types import Prompt


class Sheet:
    def open(self) -> Image.Image:
        return Image.new("RGB", (28, 28))


def prompt(question: str, num_images: int) -> Prompt:
    return Prompt(id="p/1", question=question, answer="1", images=(Sheet(),) * num_images)


def test_the_words_are_the_papers():
    assert template.SYSTEM == "You are a helpful assistant."
    assert template.user_text("Find x.") == (
        "Find x.\n\nYou first think through the reasoning process as an internal monologue, enclosed within "
        "<think> </think> tags. Then, provide your final answer enclosed within \\boxed{ }."
    )


@pytest.mark.parametrize(
    "question",
    ["Find x.", "  Find x.\n", "\n<image> Find x.\t", "\u3000Find  x.\xa0", "Find x. <image>\n", " \n ", ""],
)
def test_the_question_is_trimmed_as_papo_and_vppo_trim_it(question):
    papos = jinja2.Template("{{ content | trim }}\n\n{{ instruction }}")
    assert template.user_text(question) == papos.render(content=question, instruction=template.INSTRUCTION)


def test_white_space_within_the_question_stays():
    found = template.segments(prompt("\n <image>\n Find  x in <image> .\n", 2))
    assert found == (
        ImagePlace(0),
        "\n Find  x in ",
        ImagePlace(1),
        f" .\n\n{template.INSTRUCTION}",
    )


def test_without_marks_the_words_follow_the_images_at_once():
    assert template.segments(prompt("  Find x. ", 1)) == (ImagePlace(0), f"Find x.\n\n{template.INSTRUCTION}")


def test_the_tiny_worlds_questions_have_nothing_to_trim():
    for split in procedural.SPLITS:
        assert all(p.question == p.question.strip() for p in procedural.dataset(split, 100))


def test_images_stand_at_their_marks():
    found = template.segments(prompt("Compare <image> with <image>.", 2))
    assert found == (
        "Compare ",
        ImagePlace(0),
        " with ",
        ImagePlace(1),
        f".\n\n{template.INSTRUCTION}",
    )


def test_without_marks_the_images_come_first():
    found = template.segments(prompt("Find x.", 2))
    assert found == (ImagePlace(0), ImagePlace(1), f"Find x.\n\n{template.INSTRUCTION}")


def test_a_prompt_without_images_is_text_alone():
    assert template.segments(prompt("1+1?", 0)) == (f"1+1?\n\n{template.INSTRUCTION}",)


@pytest.mark.parametrize(("question", "num_images"), [("<image>", 0), ("<image><image>", 1), ("<image>", 2)])
def test_marks_must_match_the_images(question, num_images):
    with pytest.raises(UserError, match="p/1"):
        template.segments(prompt(question, num_images))


def test_messages_hold_system_text_and_opened_images():
    system, user = template.messages(prompt("<image>Find x.", 1))
    assert system == {"role": "system", "content": template.SYSTEM}
    image, text = user["content"]
    assert image["image"].size == (28, 28)
    assert text == {"type": "text", "text": f"Find x.\n\n{template.INSTRUCTION}"}


def test_special_tokens_in_a_question_stay_in_text_segments():
    found = template.segments(prompt("<image>Is <|image_pad|> a token?", 1))
    assert [segment for segment in found if isinstance(segment, ImagePlace)] == [ImagePlace(0)]
    assert isinstance(found[1], str)
    assert "<|image_pad|>" in found[1]


def test_the_papers_template_as_jinja_says_the_same():
    for question in ("Find x.", "  <image> Find x.\n", "{{ 7 * 7 }} {% if %}"):
        assert template.render(template.TEMPLATE, question) == template.user_text(question)


def test_the_papers_style_leaves_a_prompt_as_it_is():
    asked = prompt("Find x.", 1)
    assert PromptStyle().apply(asked) is asked


def test_a_style_of_ones_own_places_question_and_images():
    style = PromptStyle("Be brief.", "<image>Q: {{ question }}\nAnswer in <answer> tags.")
    asked = style.apply(prompt("Find x.", 1))
    assert template.segments(asked) == (ImagePlace(0), "Q: Find x.\nAnswer in <answer> tags.")
    assert template.system_text(asked) == "Be brief."
    with pytest.raises(UserError, match="p/1"):
        template.segments(style.apply(prompt("<image>Find x.", 1)))


def test_the_setting_wins_over_the_rows_system_message_and_that_over_the_papers():
    own = replace(prompt("Find x.", 0), system="You are a cat.")
    assert template.system_text(PromptStyle().apply(own)) == "You are a cat."
    assert template.system_text(PromptStyle("Be brief.").apply(own)) == "Be brief."
    assert template.system_text(PromptStyle("").apply(own)) == ""
    assert [message["role"] for message in template.messages(PromptStyle("").apply(own))] == ["user"]


@pytest.mark.parametrize(
    ("style", "thinks"),
    [
        (PromptStyle(), True),
        (PromptStyle(template="{{ question }}"), False),
        (PromptStyle("Use <think> tags.", "{{ question }}"), True),
    ],
)
def test_whether_it_asks_to_think(style, thinks):
    assert style.asks_to_think == thinks


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{ problem }}", r"uses \{\{ problem \}\}, but it is given \{\{ question \}\} alone"),
        ("{{ 'q' }}", r"has no \{\{ question \}\}; write where the question goes"),
        ("{{ question", r"is not valid Jinja \(line 1: "),
        ("{{ question.__class__ }}", r"cannot be rendered \(SecurityError: "),
        ("{{ question.no_such }}", r"cannot be rendered \(UndefinedError: "),
        ("{{ question / 0 }}", r"cannot be rendered \(TypeError: "),
        ("no/such.jinja", r"'no/such.jinja' cannot be read as a file \(No such file or directory\)"),
    ],
)
def test_a_template_that_cannot_work_is_one_sentence(text, sentence):
    with pytest.raises(UserError, match=f"^the prompt template {sentence}"):
        template.read_template(text)


def test_a_template_is_read_from_a_file_once_and_easyr1s_works(tmp_path):
    file = tmp_path / "math.jinja"
    file.write_text("{{ content | trim }} You FIRST think.\n")
    text = template.read_template(str(file))
    assert text == "{{ content | trim }} You FIRST think.\n"
    assert template.read_template(text) == text
    assert template.render(text, " Find x. ") == "Find x. You FIRST think."
