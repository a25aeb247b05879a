//! Reports the status of a service to a service manager: systemd's protocol, for units of `Type=notify`. Without a
//! manager (`NOTIFY_SOCKET`) nothing happens.

use sd_notify::NotifyState;

/// The service is ready.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The service stops.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Shows a line as the status of the service.
pub fn status(line: &str) {
    tell(&[NotifyState::Status(line)]);
}

fn tell(state: &[NotifyState<'_>]) {
    // Keep the variable: changing the environment of a process with several threads is not safe.
    let keep_the_variable = false;
    if let Err(error) = sd_notify::notify(keep_the_variable, state) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}
