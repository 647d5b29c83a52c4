//! A recording: any bytes. What is read must be the same when it is written and read again, and a replay of it must
//! end.
#![no_main]

use softdpu_sched::record::{Decoder, Encoder, Event, Header};
use softdpu_twin::replay::{self, Outcome};

fn read(file: &[u8]) -> Option<(Header, Vec<Event>)> {
    let (header, decoder) = Decoder::new(file).ok()?;
    Some((header, decoder.map_while(Result::ok).collect()))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((header, events)) = read(data) else { return };
    let mut encoder = Encoder::new(&header, 16 << 20);
    events.iter().for_each(|event| encoder.write(event));
    let again = encoder.take(Vec::new());
    let (header_again, events_again) = read(&again).expect("what was written can be read");
    // Questions that were asked again are counted together, whoever counted them: so the second writing is the measure.
    let mut encoder = Encoder::new(&header_again, 16 << 20);
    events_again.iter().for_each(|event| encoder.write(event));
    assert_eq!(encoder.take(Vec::new()), again);
    assert_eq!(header_again, header);
    let _ = replay::verify(data).map(|report| matches!(report.outcome, Outcome::Same));
});
