//! Dates for `strftime_now`: a point in time, in UTC, written by a format string.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Writes `time` as C's strftime does in the C locale, for the usual directives; `%-d` and the like omit padding.
///
/// # Errors
/// The directive that is not known.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(error) => {
            let before = error.duration();
            // Rounds towards the past, as for times after 1970.
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            -seconds.saturating_add(i64::from(before.subsec_nanos() > 0))
        }
    };
    let date = Date::new(seconds);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let directive = directive.ok_or("the format ends within a directive")?;
        date.write(directive, padded, &mut out)
            .ok_or_else(|| format!("strftime directive `%{directive}` is not known"))?;
    }
    Ok(out)
}

struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 1.
    day_of_year: i64,
    /// From 0, Sunday.
    weekday: i64,
    second_of_day: i64,
    seconds: i64,
}

impl Date {
    /// The proleptic Gregorian calendar, counted in years that begin in March.
    fn new(seconds: i64) -> Date {
        let days = seconds.div_euclid(86_400);
        // Days since 1 March of the year 0; 400 years have 146,097 days.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = match month {
            1 | 2 => (month - 1) * 31 + day,
            _ => day_of_march_year + 60 + i64::from(is_leap),
        };
        let weekday = (days + 4).rem_euclid(7);
        Date { year, month, day, day_of_year, weekday, second_of_day: seconds.rem_euclid(86_400), seconds }
    }

    fn write(&self, directive: char, padded: bool, out: &mut String) -> Option<()> {
        let (hour, minute, second) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let hour_of_12 = (hour + 11) % 12 + 1;
        let month = MONTHS[self.month as usize - 1];
        let weekday = WEEKDAYS[self.weekday as usize];
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            write!(out, "{value:0width$}").ok()
        };
        match directive {
            'Y' => return number(self.year, 4),
            'm' => return number(self.month, 2),
            'd' => return number(self.day, 2),
            'y' => return number(self.year.rem_euclid(100), 2),
            'j' => return number(self.day_of_year, 3),
            'H' => return number(hour, 2),
            'I' => return number(hour_of_12, 2),
            'M' => return number(minute, 2),
            'S' => return number(second, 2),
            'w' => return number(self.weekday, 1),
            'u' => return number((self.weekday + 6) % 7 + 1, 1),
            's' => return number(self.seconds, 1),
            _ => {}
        }
        match directive {
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'A' => out.push_str(weekday),
            'a' => out.push_str(&weekday[..3]),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'e' => write!(out, "{:2}", self.day).ok()?,
            'F' => self.all(&['Y', '-', 'm', '-', 'd'], out)?,
            'D' | 'x' => self.all(&['m', '/', 'd', '/', 'y'], out)?,
            'T' | 'X' => self.all(&['H', ':', 'M', ':', 'S'], out)?,
            'R' => self.all(&['H', ':', 'M'], out)?,
            'c' => self.all(&['a', ' ', 'b', ' ', 'e', ' ', 'T', ' ', 'Y'], out)?,
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            _ => return None,
        }
        Some(())
    }

    fn all(&self, parts: &[char], out: &mut String) -> Option<()> {
        for &part in parts {
            match part {
                'a'..='z' | 'A'..='Z' => self.write(part, true, out)?,
                punctuation => out.push(punctuation),
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: i64, format: &str) -> String {
        let distance = Duration::from_secs(seconds.unsigned_abs());
        let time = if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance };
        strftime(time, format).unwrap()
    }

    #[test]
    fn known_dates() {
        assert_eq!(at(0, "%Y-%m-%d %H:%M:%S %a %A %j"), "1970-01-01 00:00:00 Thu Thursday 001");
        assert_eq!(at(951_782_400, "%d %b %Y, %B %-d, %j"), "29 Feb 2000, February 29, 060");
        assert_eq!(at(1_735_689_599, "%F %T %j %y %u %w"), "2024-12-31 23:59:59 366 24 2 2");
        assert_eq!(at(1_709_251_200, "%x %R %I%p|%e|%-H"), "03/01/24 00:00 12AM| 1|0");
        assert_eq!(at(-1, "%c %Z%z %%"), "Wed Dec 31 23:59:59 1969 UTC+0000 %");
        assert_eq!(at(4_107_542_400, "%F %j"), "2100-03-01 060");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut expected = (1970, 1, 1, 1, 4);
        for day in 0..146_097i64 {
            let date = Date::new(day * 86_400 + 1);
            assert_eq!((date.year, date.month, date.day, date.day_of_year, date.weekday), expected);
            let leap = expected.0 % 4 == 0 && (expected.0 % 100 != 0 || expected.0 % 400 == 0);
            let days = match expected.1 {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected.4 = (expected.4 + 1) % 7;
            expected = match (expected.1, expected.2) {
                (12, 31) => (expected.0 + 1, 1, 1, 1, expected.4),
                (month, last) if last == days => (expected.0, month + 1, 1, expected.3 + 1, expected.4),
                (month, day) => (expected.0, month, day + 1, expected.3 + 1, expected.4),
            };
        }
    }

    #[test]
    fn unknown_directives_are_named() {
        assert!(strftime(UNIX_EPOCH, "%Q").unwrap_err().contains("%Q"));
        assert!(strftime(UNIX_EPOCH, "100%").is_err());
    }
}
