//! Command by command through memcached's protocol document. The expected answers were compared with memcached 1.6.45.

use dunlin_kv::memcached::Conversation;

use super::script::{check, core, settings};

#[test]
fn set_and_get() {
    check(
        "> set a 5 0 3
         > abc
         < STORED
         > get a
         < VALUE a 5 3
         < abc
         < END
         > gets a
         < VALUE a 5 3 1
         < abc
         < END
         > set a 4294967295 0 0
         >
         < STORED
         > get a b a
         < VALUE a 4294967295 0
         <
         < VALUE a 4294967295 0
         <
         < END
         > set b 0 0 2 noreply
         > hi
         > get  b   a  
         < VALUE b 0 2
         < hi
         < VALUE a 4294967295 0
         <
         < END
         > bget b
         < ERROR",
    );
}

#[test]
fn data_may_be_any_bytes() {
    check(
        r"> set a 0 0 10
          > \x00\x0d\x0a\x80\xff \x0d\x0aab
          < STORED
          > get a
          < VALUE a 0 10
          < \x00\x0d\x0a\x80\xff \x0d\x0aab
          < END",
    );
}

#[test]
fn storage_commands_have_conditions() {
    check(
        "> replace a 0 0 1
         > x
         < NOT_STORED
         > append a 0 0 1
         > x
         < NOT_STORED
         > prepend a 0 0 1
         > x
         < NOT_STORED
         > cas a 0 0 1 1
         > x
         < NOT_FOUND
         > add a 7 0 1
         > x
         < STORED
         > add a 0 0 1
         > y
         < NOT_STORED
         > append a 0 0 2
         > yz
         < STORED
         > prepend a 0 0 1
         > w
         < STORED
         > gets a
         < VALUE a 7 4 3
         < wxyz
         < END
         > cas a 1 0 1 2
         > n
         < EXISTS
         > cas a 1 0 1 3
         > n
         < STORED
         > replace a 2 0 1
         > r
         < STORED
         > gets a
         < VALUE a 2 1 5
         < r
         < END",
    );
}

#[test]
fn bad_storage_lines() {
    check(
        "# Without a length nothing is swallowed.
         > set a 0 0
         < CLIENT_ERROR bad command line format
         > set a 0 0 x
         < CLIENT_ERROR bad command line format
         > set a 0 0 -1 noreply
         < CLIENT_ERROR bad command line format
         > set a 0 0 2147483648
         < CLIENT_ERROR bad command line format
         > set a 0 0 +1
         < CLIENT_ERROR bad command line format
         # With one the data is swallowed, whatever else is wrong.
         > set a x 0 1
         > x
         < CLIENT_ERROR bad command line format
         > set a -1 0 1
         > x
         < CLIENT_ERROR bad command line format
         > set a 0 x 1
         > x
         < CLIENT_ERROR bad command line format
         > cas a 0 0 1 x
         > x
         < CLIENT_ERROR bad command line format
         > cas a 0 0 1
         > x
         < CLIENT_ERROR bad command line format
         > set {k*251} 0 0 1
         > x
         < CLIENT_ERROR bad command line format
         > set {k*250} 0 0 1
         > x
         < STORED
         > set a 4294967296 0 1
         > x
         < STORED
         > get a
         < VALUE a 0 1
         < x
         < END
         # More words than it needs are ignored.
         > set a 0 0 1 more words
         > y
         < STORED
         # Silence is kept even about what is wrong.
         > set {k*251} 0 0 1 noreply
         > z
         > set b 0 0 1 noreply noreply
         > z
         > mn
         < MN
         > get b
         < VALUE b 0 1
         < z
         < END",
    );
}

#[test]
fn the_data_of_a_refused_command_is_never_run() {
    // The first line is rejected, each time for another reason; the second must not be taken for a command.
    for line in [
        "set {k*251} 0 0 9",
        "add {k*251} 0 0 9",
        "replace a x 0 9",
        "append a 0 x 9",
        "prepend a 0 99999999999999999999 9",
        "cas a 0 0 9 x",
        "cas a 0 0 9",
    ] {
        check(&format!(
            "> set victim 0 0 1
             > v
             < STORED
             > {line}
             > flush_all
             < CLIENT_ERROR bad command line format
             > {line} noreply
             > flush_all
             > get victim
             < VALUE victim 0 1
             < v
             < END"
        ));
    }
    for (line, said) in [
        ("ms {k*251} 9", "bad command line format"),
        ("ms a 9 !", "bad command line format"),
        ("ms a 9 -1", "bad command line format"),
        ("ms a 9 MX", "invalid mode for ms M token"),
        ("ms a 9 Z", "invalid flag"),
        ("ms a 9 v v", "duplicate flag"),
        ("ms a 9 Tx", "bad token in command line format"),
        ("ms a 9 b", "error decoding key"),
        ("ms a 9 O{o*32}", "opaque token too long"),
        ("ms a 9 s k q t v c f l h u x I P L N0 T0 R0 C0", "options flags are too long"),
    ] {
        check(&format!("> {line}\n> flush_all\n< CLIENT_ERROR {said}\n> mn\n< MN"));
    }
}

#[test]
fn what_a_browser_sends_closes_the_connection() {
    for request in [
        "GET / HTTP/1.1\r\nHost: localhost:11211\r\n\r\nset a 0 0 1\r\nx\r\n",
        "POST /set HTTP/1.0\r\n\r\nset a 0 0 1\r\nx\r\n",
        "post a b c HTTP/2\nset a 0 0 1\r\nx\r\n",
        "OPTIONS  *  HTTP/1.1 \r\nset a 0 0 1\r\nx\r\n",
    ] {
        for cut in 0..request.len() {
            let core = core();
            let settings = settings();
            let mut client = Conversation::new(&core, &settings);
            let mut answer = Vec::new();
            client.say(&request.as_bytes()[..cut], &mut answer);
            client.say(&request.as_bytes()[cut..], &mut answer);
            assert!(client.is_closed(), "{request:?} cut at {cut}");
            assert_eq!(String::from_utf8_lossy(&answer), "");
            let mut other = Conversation::new(&core, &settings);
            other.say(b"get a\r\n", &mut answer);
            assert_eq!(String::from_utf8_lossy(&answer), "END\r\n", "{request:?} cut at {cut}");
        }
    }
    // Keys and values may contain it.
    check(
        "> set HTTP/1.1 0 0 8
         > HTTP/1.1
         < STORED
         > get a HTTP/1.1
         < VALUE HTTP/1.1 0 8
         < HTTP/1.1
         < END
         > HTTP/1.1
         < ERROR",
    );
}

#[test]
fn a_data_block_of_another_length() {
    check(
        "> set a 0 0 2
         > abc
         < CLIENT_ERROR bad data chunk
         < CLIENT_ERROR bad command line format
         > set a 0 0 5 noreply
         > abcdefg
         < CLIENT_ERROR bad command line format
         > ms a 2 q
         > abc
         < CLIENT_ERROR bad data chunk
         < CLIENT_ERROR bad command line format
         > get a
         < END",
    );
}

#[test]
fn numbers() {
    check(
        "> incr n 1
         < NOT_FOUND
         > set n 9 0 2
         > 99
         < STORED
         > incr n 1
         < 100
         > decr n 1
         < 99
         # What got shorter is filled with spaces.
         > get n
         < VALUE n 9 3
         < 99 
         < END
         > incr n 18446744073709551615
         < 98
         > decr n 1000
         < 0
         > incr n 7 noreply
         > decr n 1 noreply
         > get n
         < VALUE n 9 3
         < 6  
         < END
         > incr n abc
         < CLIENT_ERROR invalid numeric delta argument
         > incr n -1
         < CLIENT_ERROR invalid numeric delta argument
         > decr n 18446744073709551616
         < CLIENT_ERROR invalid numeric delta argument
         > incr n
         < CLIENT_ERROR bad command line format
         > incr {k*251} 1
         < CLIENT_ERROR bad command line format
         > set n 0 0 5
         > 1 abc
         < STORED
         > incr n 1
         < 2
         > set n 0 0 2
         > -1
         < STORED
         > incr n 1
         < CLIENT_ERROR cannot increment or decrement non-numeric value
         > set n 0 0 0
         >
         < STORED
         > decr n 1
         < CLIENT_ERROR cannot increment or decrement non-numeric value
         > set n 0 0 20
         > 18446744073709551615
         < STORED
         > incr n 1
         < 0",
    );
}

#[test]
fn deletion() {
    check(
        "> set a 0 0 1
         > x
         < STORED
         > delete a
         < DELETED
         > delete a
         < NOT_FOUND
         > delete a 0
         < NOT_FOUND
         > delete a 0 noreply
         > delete a noreply
         > delete a 1
         < NOT_FOUND
         > delete a 1 noreply
         > delete
         < CLIENT_ERROR bad command line format
         > delete a b c d
         < NOT_FOUND
         > delete {k*251}
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn expiry_is_relative_up_to_thirty_days() {
    check(
        "> set a 0 10 1
         > x
         < STORED
         > set b 0 2592000 1
         > x
         < STORED
         > set c 0 1700000020 1
         > x
         < STORED
         # A date in 1970, and the past.
         > set d 0 2592001 1
         > x
         < STORED
         > set e 0 -1 1
         > x
         < STORED
         > get a b c d e
         < VALUE a 0 1
         < x
         < VALUE b 0 1
         < x
         < VALUE c 0 1
         < x
         < END
         @ 9
         > get a c
         < VALUE a 0 1
         < x
         < VALUE c 0 1
         < x
         < END
         @ 1
         > get a c
         < VALUE c 0 1
         < x
         < END
         @ 10
         > get c
         < END
         > get b
         < VALUE b 0 1
         < x
         < END",
    );
}

#[test]
fn a_negative_expiry_deletes_what_there_was() {
    check(
        "> set a 0 0 1
         > x
         < STORED
         > set a 0 -1 1
         > y
         < STORED
         > get a
         < END",
    );
}

#[test]
fn touch_and_get_and_touch() {
    check(
        "> touch a 0
         < NOT_FOUND
         > set a 3 10 1
         > x
         < STORED
         > touch a 100
         < TOUCHED
         > touch a 100 noreply
         > touch a
         < CLIENT_ERROR bad command line format
         > touch a x
         < CLIENT_ERROR invalid exptime argument
         @ 50
         > gat 20 a b
         < VALUE a 3 1
         < x
         < END
         @ 19
         > gats 0 a
         < VALUE a 3 1 1
         < x
         < END
         @ 1000
         > gat -1 a
         < VALUE a 3 1
         < x
         < END
         > get a
         < END
         > gat x a
         < CLIENT_ERROR invalid exptime argument
         > gat 0
         < CLIENT_ERROR bad command line format
         > gat
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn flush_all_now_and_later() {
    check(
        "> set a 0 0 1
         > x
         < STORED
         > flush_all
         < OK
         > get a
         < END
         > set a 0 0 1
         > x
         < STORED
         > flush_all 10
         < OK
         > get a
         < VALUE a 0 1
         < x
         < END
         @ 9
         > set b 0 0 1
         > y
         < STORED
         > get a b
         < VALUE a 0 1
         < x
         < VALUE b 0 1
         < y
         < END
         @ 1
         > get a b
         < END
         > set b 0 0 1
         > y
         < STORED
         @ 100
         > get b
         < VALUE b 0 1
         < y
         < END
         > flush_all noreply
         > get b
         < END
         > flush_all 0 noreply
         > flush_all -1
         < OK
         > flush_all x
         < CLIENT_ERROR invalid exptime argument
         > flush_all 1 2 3
         < OK",
    );
}

#[test]
fn commands_without_keys() {
    check(&format!(
        "> version
         < VERSION {0}
         > version foo
         < VERSION {0}
         > verbosity 1
         < OK
         > verbosity 1 noreply
         > verbosity x
         < CLIENT_ERROR bad command line format
         > verbosity
         < CLIENT_ERROR bad command line format
         > shutdown
         < SERVER_ERROR: shutdown not enabled
         > cache_memlimit 1
         < MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m
         > cache_memlimit 64
         < MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust
         > cache_memlimit x
         < ERROR
         > slabs reassign 1 2
         < CLIENT_ERROR slab reassignment disabled
         > slabs automove x
         < CLIENT_ERROR bad command line format
         > slabs
         < ERROR
         > lru_crawler crawl 1
         < CLIENT_ERROR lru crawler disabled
         > watch
         < CLIENT_ERROR watch commands not allowed
         > stats sizes
         < STAT sizes_status disabled
         < END
         > stats items
         < END
         > stats nonsense
         < ERROR
         > stats reset
         < RESET
         > stats detail
         < CLIENT_ERROR usage: stats detail on|off|dump",
        dunlin_kv::memcached::VERSION
    ));
}

#[test]
fn unknown_commands() {
    check(
        r"> nonsense
          < ERROR
          >
          < CLIENT_ERROR bad command line format
          > x
          < CLIENT_ERROR bad command line format
          > GET a
          < ERROR
          > get
          < CLIENT_ERROR bad command line format
          > get   
          < CLIENT_ERROR bad command line format
          > getsy a
          < ERROR
          > mx a
          < ERROR
          > set\x09a 0 0 1
          < ERROR
          > extstore a b
          < ERROR
          # A zero byte is a byte like others.
          > mn\x00foo
          < ERROR
          >  get a
          < ERROR",
    );
}

#[test]
fn keys_of_a_retrieval_are_checked_before_any_is_answered() {
    check(
        "> set a 0 0 1
         > x
         < STORED
         > get a {k*251} a
         < CLIENT_ERROR bad command line format
         > get a {k*250}
         < VALUE a 0 1
         < x
         < END",
    );
}

#[test]
fn meta_get() {
    check(
        "> mg a
         < EN
         > mg a v q k
         > mg a k Oxyz
         < EN ka Oxyz
         > set a 5 0 3
         > abc
         < STORED
         > mg a
         < HD
         > mg a v
         < VA 3
         < abc
         > mg a k q s v f t c h Oopaque
         < VA 3 ka s3 f5 t-1 c1 h1 Oopaque
         < abc
         > mg
         < CLIENT_ERROR bad command line format
         > mg {k*251}
         < CLIENT_ERROR bad command line format
         > mg a v v
         < CLIENT_ERROR duplicate flag
         > mg a Z
         < CLIENT_ERROR invalid flag
         > mg a Tx
         < CLIENT_ERROR bad token in command line format
         > mg a Fx
         < CLIENT_ERROR bad command line format
         > mg a MXX
         < HD
         > mg a O{o*32}
         < CLIENT_ERROR opaque token too long
         > mg a O{o*31}
         < HD O{o*31}
         > mg a {a *30}
         < CLIENT_ERROR options flags are too long
         > mg a Lpath P/x
         < HD
         > mn
         < MN",
    );
}

#[test]
fn meta_get_tells_of_the_access_before() {
    check(
        "> ms a 1
         > x
         < HD
         @ 7
         > mg a h l u
         < HD h0 l7
         > mg a h l
         < HD h0 l7
         > mg a h l
         < HD h1 l0
         > ms a 1 T100
         > x
         < HD
         @ 40
         > mg a t
         < HD t60
         > mg a t T30
         < HD t60
         > mg a T50 t
         < HD t50
         > mg a T0 t
         < HD t-1
         > mg a T-1
         < HD
         > mg a
         < EN",
    );
}

#[test]
fn one_client_wins_the_right_to_make_an_item() {
    check(
        "> mg a N30 v t
         < VA 0 t30 W
         <
         > mg a N30 v t
         < VA 0 t30 Z
         <
         > mg a v h u
         < VA 0 h1 Z
         <
         > ms a 1
         > x
         < HD
         > mg a v N30
         < VA 1
         < x",
    );
}

#[test]
fn one_client_wins_the_right_to_refresh_an_item() {
    check(
        "> set a 0 50 1
         > x
         < STORED
         > mg a R30
         < HD
         > mg a R60 t
         < HD t50 W
         > mg a R60
         < HD Z
         > set a 0 0 1
         > x
         < STORED
         > mg a R60
         < HD",
    );
}

#[test]
fn stale_items() {
    check(
        "> ms a 1 c
         > x
         < HD c1
         > md a I T30
         < HD
         > mg a c v t
         < VA 1 c2 t30 X W
         < x
         > mg a c v
         < VA 1 c2 Z X
         < x
         # Too old to store, but with I as a stale item that keeps its time and its winner.
         > ms a 1 C1
         > y
         < EX
         > ms a 1 C1 I c
         > y
         < HD c3
         > mg a v t
         < VA 1 t30 Z X
         < y
         > ms a 1 C99 I
         > z
         < EX
         > ms a 1 C3
         > z
         < HD
         > mg a v t
         < VA 1 t-1
         < z
         > md a C1
         < EX
         > md a I C1 q
         < EX
         > md a I q
         > get a
         < VALUE a 0 1
         < z
         < END",
    );
}

/// So nothing is left of what clients did with the item before.
#[test]
fn append_and_prepend_make_a_new_item() {
    check(
        "> ms a 1 T100
         > x
         < HD
         > md a I
         < HD
         > mg a v
         < VA 1 X W
         < x
         > append a 0 0 1
         > y
         < STORED
         > mg a v t h
         < VA 2 t100 h0
         < xy
         > md a I
         < HD
         > mg a v
         < VA 2 X W
         < xy
         > ms a 1 MP
         > w
         < HD
         > mg a v t h
         < VA 3 t100 h0
         < wxy",
    );
}

#[test]
fn touch_is_an_access() {
    check(
        "> set a 0 0 1
         > x
         < STORED
         > touch a 100
         < TOUCHED
         > mg a h t
         < HD h1 t100
         > set a 0 0 1
         > x
         < STORED
         > touch a 0 noreply
         > mg a h t
         < HD h1 t-1
         > touch a -1
         < TOUCHED
         > mg a h
         < EN",
    );
}

#[test]
fn meta_set() {
    check(
        "> ms a 2 F7 T100 c k Oq
         > hi
         < HD c1 ka Oq
         > mg a v f t
         < VA 2 f7 t100
         < hi
         > ms a 1 ME
         > x
         < NS
         > ms b 1 MR
         > x
         < NS
         > ms b 1 MA
         > x
         < NS
         > ms b 1 C5 k c
         > x
         < NF kb c0
         > ms a 1 MA s
         > !
         < HD s3
         # Zero is not a token.
         > ms a 0 MA C0
         >
         < HD
         > ms a 0 MP C99
         >
         < EX
         > ms a 2 MP q
         > oh
         > get a
         < VALUE a 7 5
         < ohhi!
         < END
         > ms a 1 MS q
         > x
         > ms a 1 q ME
         > x
         < NS
         > ms b 2 MA N0
         > up
         < HD
         > mg b v
         < VA 2
         < up
         > ms b 1 E1000 c
         > x
         < HD c1000
         > mg b c
         < HD c1000
         > ms a
         < CLIENT_ERROR bad command line format
         > ms a x
         < CLIENT_ERROR bad command line format
         > ms a -1
         < CLIENT_ERROR bad command line format
         # With a length the data is swallowed with the line.
         > ms a 1 MX
         > x
         < CLIENT_ERROR invalid mode for ms M token
         > ms a 1 Z
         > x
         < CLIENT_ERROR invalid flag
         > ms a 1 O{o*32}
         > x
         < CLIENT_ERROR opaque token too long
         > mn
         < MN",
    );
}

#[test]
fn meta_delete() {
    check(
        "> md a
         < NF
         > md a q k
         < NF ka
         > ms a 1
         > x
         < HD
         > md a C2
         < EX
         > md a C1 k Oo
         < HD ka Oo
         > ms a 1 F3 T60
         > x
         < HD
         > md a q
         > mg a
         < EN
         > ms a 1 F3 T60
         > x
         < HD
         > md a x
         < HD
         > mg a v f t
         < VA 0 f0 t-1
         <
         > md a Z
         < CLIENT_ERROR invalid flag
         > md
         < CLIENT_ERROR bad command line format",
    );
}

#[test]
fn meta_arithmetic() {
    check(
        "> ma n
         < NF
         > ma n q k
         < NF kn
         > ma n N0 J5 v t
         < VA 1 t-1
         < 5
         > ma n N0 J5 v
         < VA 1
         < 6
         > ma n D10 q
         > ma n MD D100 v
         < VA 1
         < 0
         > ma n M+ D7
         < HD
         > ma n MI v c
         < VA 1 c6
         < 8
         > ma n M- T30 t v
         < VA 1 t30
         < 7
         > ma n C1 k
         < EX kn
         > ma n C7 v
         < VA 1
         < 8
         > ma n C0 v Oo
         < VA 1 Oo
         < 9
         > ma n MX
         < CLIENT_ERROR invalid mode for ma M token
         > ma n Dx
         < CLIENT_ERROR invalid or duplicate flag
         > set n 0 0 1
         > x
         < STORED
         > ma n
         < CLIENT_ERROR cannot increment or decrement non-numeric value",
    );
}

/// A stale item that one client may renew, and a number that grows within its length, and beyond it.
#[test]
fn a_number_that_gets_longer_is_a_new_item() {
    check(
        "> ms a 1
         > 8
         < HD
         > md a I
         < HD
         > mg a v
         < VA 1 X W
         < 8
         > incr a 1
         < 9
         > mg a v
         < VA 1 Z X
         < 9
         > incr a 1
         < 10
         > mg a v
         < VA 2
         < 10",
    );
}

#[test]
fn meta_debug() {
    check(
        "> me a
         < EN
         > me
         < CLIENT_ERROR bad command line format
         > me {k*251}
         < CLIENT_ERROR bad command line format
         > ms a 2 T100
         > hi
         < HD
         @ 10
         > me a
         < ME a exp=90 la=10 cas=1 fetch=no cls=1 size=3
         > mg a
         < HD
         > me a
         < ME a exp=90 la=0 cas=1 fetch=yes cls=1 size=3",
    );
}

#[test]
fn keys_in_base64() {
    check(
        "> ms Zm9v 1 b k
         > x
         < HD kZm9v b
         > get foo
         < VALUE foo 0 1
         < x
         < END
         > mg Zm9v b k v
         < VA 1 kZm9v b
         < x
         > mg Zg== k b
         < EN kZg== b
         > ms AAECAw== 1 b
         > y
         < HD
         > mg AAECAw== b v k
         < VA 1 kAAECAw== b
         < y
         > md AAECAw== b
         < HD
         > ma AQ== b N0 J3 v
         < VA 1
         < 3
         > me AQ== b
         < ME AQ== exp=-1 la=0 cas=3 fetch=no cls=1 size=2
         > mg Zg b
         < CLIENT_ERROR error decoding key
         > mg = b
         < CLIENT_ERROR error decoding key",
    );
}
