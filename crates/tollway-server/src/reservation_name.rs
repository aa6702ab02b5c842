//! Reservations by name: 32 hexadecimal digits.

use tollway_core::ReservationId;

/// The name of a reservation.
pub(crate) fn text(id: ReservationId) -> String {
    format!("{:032x}", id.0)
}

/// The reservation of this name, if it is a name.
pub(crate) fn parse(text: &str) -> Option<ReservationId> {
    // `from_str_radix` alone would take a sign and fewer digits.
    let is_name = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| u128::from_str_radix(text, 16).ok().map(ReservationId)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_nothing_else_is_one() {
        for id in [0, 1, u128::MAX] {
            assert_eq!(parse(&text(ReservationId(id))), Some(ReservationId(id)));
        }
        for wrong in ["", "1", &"g".repeat(32), &"1".repeat(33), "+0000000000000000000000000000001"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
