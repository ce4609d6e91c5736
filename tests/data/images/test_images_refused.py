"""What a folder of pictures refuses: each time one error that names the place."""

import pytest

import hasten
from hasten.data.images.image_folder import ImageFolder
from hasten.errors import DataFailed, Misconfigured
from support.data.image_cases import jpeg, photos, write
from support.data.loaders import HERE, TWO_WORKERS, epoch_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

VIEW = hasten.CenterCrop(24)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize("view", [24, None, str.upper, hasten.CenterCrop], ids=["number", "None", "function", "class"])
def test_what_is_no_view_is_refused_when_it_is_given(root, view):
    with pytest.raises(Misconfigured, match="does not say what of an image is shown") as refusal:
        ImageFolder(root, view)
    assert "hasten.RandomResizedCrop(224)" in refusal.value.fix


@pytest.mark.parametrize("options", [HERE, TWO_WORKERS], ids=["here", "workers"])
def test_a_file_that_cannot_be_read_is_named_with_its_sample(tmp_path, options):
    files = {f"c/{number}.jpg": jpeg(30, 30, number) for number in range(5)} | {"c/3.jpg": jpeg(30, 30)[:200]}
    data = ImageFolder(write(tmp_path, files), VIEW)
    with pytest.raises(DataFailed) as refusal:
        epoch_of(data, 2, options=options)
    assert refusal.value.exit_code == 11
    assert f"sample 3 of Job.train could not be read in epoch 2: {tmp_path}/c/3.jpg: is no image" in str(refusal.value)
    assert 'on_bad_sample="replace"' in refusal.value.fix
