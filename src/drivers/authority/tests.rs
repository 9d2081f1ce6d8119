use proptest::prelude::*;

use super::*;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
    frame.extend_from_slice(payload);
    frame
}

/// `:method: POST`, the authority as a literal of the given kind, and a dynamic table size update before both.
fn block(representation: u8, authority: &str) -> Vec<u8> {
    let mut block = vec![0x20, 0x83, representation, u8::try_from(authority.len()).unwrap()];
    block.extend_from_slice(authority.as_bytes());
    block.extend_from_slice(b"\x40\x01k\x02vv");
    block
}

fn through(input: &[&[u8]]) -> Vec<u8> {
    let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
    for part in input {
        rewriter.push(part, &mut out);
    }
    out
}

const CLIENT: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &str = "tmp%2Fcsi.sock";

#[test]
fn the_value_is_replaced_in_every_kind_of_literal() {
    for representation in [0x41, 0x01, 0x11] {
        assert_eq!(rewritten(&block(representation, PATH)), Some(block(representation, "x")));
    }
    for name in
        [&b"\x40\x0a:authority"[..], b"\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f", b"\x00\x0a:authority"]
    {
        let spelled = |value: &[u8]| [b"\x40\x05:path\x01/", name, value, b"\x83\x86"].concat();
        assert_eq!(rewritten(&spelled(b"\x0etmp%2Fcsi.sock")), Some(spelled(b"\x01x")));
    }
    assert_eq!(rewritten(b"\x40\x0a:authoritz\x01a"), None, "another name");
    assert_eq!(rewritten(&block(0x41, "")), None, "nothing shorter would fit");
    assert_eq!(rewritten(&block(0x44, "/path")), None, "another field");
    assert_eq!(rewritten(b"\x41\x7f"), None, "cut short");
}

#[test]
fn a_block_is_found_however_it_is_cut() {
    let whole = block(0x41, PATH);
    let (one, two) = whole.split_at(5);
    let padded = [&[3, 0, 0, 0, 0, 9][..], &whole, &[0, 0, 0]].concat();
    let ways = [
        frame(HEADERS, END_HEADERS | END_STREAM, &whole),
        [frame(HEADERS, END_STREAM, one), frame(CONTINUATION, 0, b""), frame(CONTINUATION, END_HEADERS, two)]
            .concat(),
        frame(HEADERS, END_HEADERS | END_STREAM | PADDED | PRIORITY, &padded),
    ];
    let expected = frame(HEADERS, END_HEADERS | END_STREAM, &block(0x41, "x"));
    for way in ways {
        let input = [CLIENT, &frame(4, 0, b""), &way, &frame(0, 1, b"data")].concat();
        let expected = [CLIENT, &frame(4, 0, b""), &expected, &frame(0, 1, b"data")].concat();
        assert_eq!(through(&[&input]), expected);
        let bytes = input.chunks(1).collect::<Vec<_>>();
        assert_eq!(through(&bytes), expected, "byte by byte");
    }
}

#[test]
fn a_long_block_is_split_again() {
    let mut long = block(0x41, PATH);
    for _ in 0..20 {
        long.extend_from_slice(b"\x40\x01k\x7f\xe9\x06"); // a value of 1000 bytes
        long.extend_from_slice(&[b'v'; 1000]);
    }
    let (one, two) = long.split_at(LONGEST_FRAME);
    let input = [CLIENT, &frame(HEADERS, 0, one), &frame(CONTINUATION, END_HEADERS, two)].concat();
    let short = rewritten(&long).unwrap();
    let (one, two) = short.split_at(LONGEST_FRAME);
    let expected = [CLIENT, &frame(HEADERS, 0, one), &frame(CONTINUATION, END_HEADERS, two)].concat();
    assert_eq!(through(&[&input]), expected);
}

#[test]
fn a_block_too_long_or_out_of_order_passes_as_it_is() {
    let part = vec![0x80; LONGEST_FRAME];
    let mut endless = [CLIENT, &frame(HEADERS, 0, &part)].concat();
    for _ in 0..20 {
        endless.extend(frame(CONTINUATION, 0, &part));
    }
    let stray = [CLIENT, &frame(CONTINUATION, END_HEADERS, b"\x80"), &frame(0, 0, b"d")].concat();
    let torn = [CLIENT, &frame(HEADERS, 0, b"\x80"), &frame(0, 0, b"d"), &frame(4, 0, b"")].concat();
    let padding = [CLIENT, &frame(HEADERS, END_HEADERS | PADDED, b"\x09\x80"), &frame(4, 0, b"")].concat();
    for input in [endless, stray, torn, padding] {
        assert_eq!(through(&[&input]), input);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_cuts_change_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in 0_usize..300,
    ) {
        let input = [CLIENT, &bytes].concat();
        let (one, two) = input.split_at(cut.min(input.len()));
        prop_assert_eq!(through(&[&input]), through(&[one, two]));
        drop(rewritten(&bytes));
    }

    #[test]
    fn without_an_authority_nothing_changes(
        frames in proptest::collection::vec((any::<u8>(), any::<u8>(), "[a-z]{0,40}"), 0..8),
    ) {
        let mut input = CLIENT.to_vec();
        for (kind, flags, payload) in &frames {
            // Letters are 0x61 and up: literals whose names have an index above 1.
            input.extend(frame(*kind, flags & !PADDED & !PRIORITY | END_HEADERS, payload.as_bytes()));
        }
        prop_assert_eq!(through(&[&input]), input);
    }
}
