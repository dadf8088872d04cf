"""The paper's template and the positions of images in it."""

import jinja2
import pytest
from PIL import Image

from pivot.data import template
from pivot.data.template import ImagePlace
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
