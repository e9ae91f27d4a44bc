"""Dataset ids are ed25519 public keys with one spelling."""

import pytest

from floodmark.chain.ids import DatasetId
from floodmark.errors import BadId

# RFC 8032, section 7.1: secret and public keys of tests 1, 2, 3, 1024 and SHA(abc)
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    ),
    (
        "f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5",
        "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
    ),
]
TEXT = "did:odf:fed01" + RFC_8032[0][1]


@pytest.mark.parametrize(("seed", "public"), RFC_8032)
def test_new_id_is_the_public_key_of_the_random_seed(seed, public):
    asked = []

    def random_bytes(count):
        asked.append(count)
        return bytes.fromhex(seed)

    assert DatasetId.generate(random_bytes).public_key.hex() == public
    assert asked == [32]


def test_text_and_bytes_read_back():
    parsed = DatasetId.parse(TEXT)
    assert (parsed.text, str(parsed), parsed.bytes.hex()) == (TEXT, TEXT, TEXT[9:])
    assert DatasetId.from_bytes(parsed.bytes) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "trips",
        "did:odf:",
        TEXT[9:],
        TEXT.replace("odf", "key"),
        TEXT.upper(),
        TEXT[:13] + TEXT[13:].upper(),
        TEXT[:-1],
        TEXT[:-2],
        TEXT + "00",
        TEXT + "\n",
        TEXT[:20] + " " + TEXT[20:],
        TEXT.replace("fed01", "fed02"),
    ],
)
def test_any_other_spelling_is_refused(text):
    with pytest.raises(BadId):
        DatasetId.parse(text)


@pytest.mark.parametrize("data", [b"", b"\xed\x01", bytes(34), b"\xed\x01" + bytes(33)])
def test_bytes_that_are_no_id_are_refused(data):
    with pytest.raises(BadId):
        DatasetId.from_bytes(data)
    with pytest.raises(BadId):
        DatasetId(data[:31])
