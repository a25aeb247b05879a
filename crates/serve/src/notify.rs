//! Tells a service manager how a service is: systemd's protocol, for units of `Type=notify`. Without one
//! (`NOTIFY_SOCKET`) nothing happens.

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
    // The variable stays: changing the environment of a process of several threads is not safe.
    let keep_the_variable = false;
    if let Err(error) = sd_notify::notify(keep_the_variable, state) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}
