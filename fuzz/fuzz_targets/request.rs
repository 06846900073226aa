//! No body at all makes the request reader panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::Input;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else { return };
    let route = ROUTES[usize::from(choice) % ROUTES.len()];
    if let Ok(input) = Input::read(body, route.fields) {
        let _ = (route.read)(&input);
    }
});
