"""The functions that a Spark query over a lake may call: Spark's built-in functions without side effects.

Taken from the function registry of Spark 4.3 and reviewed. Left out, because they reach outside the rows of the query:
code (java_method, reflect, try_reflect), files (input_file_*; from_xml, schema_of_xml, from_avro,
schema_of_avro, to_avro, from_protobuf and to_protobuf read a file that an argument names), and the session
(current_user, user, session_user, current_catalog, current_database, current_schema, current_path,
version). xpath* parses documents that may name files. Functions that Spark gains later are refused until they are
added here. Functions whose value differs in each run, such as now, rand and uuid, are harmless.
"""

from __future__ import annotations

_CONDITIONS = """
    and between case coalesce equal_null greatest if ifnull in isnan isnotnull isnull least nanvl not nullif nullifzero
    nvl nvl2 or when zeroifnull
"""

_NUMBERS = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees div e exp expm1 factorial floor getbit hex hypot ln log log10 log1p log2 mod negative pi pmod positive pow
    power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add
    try_divide try_mod try_multiply try_subtract unhex width_bucket
"""

_RANDOM = """
    monotonically_increasing_id rand randn random randstr spark_partition_id uniform uuid
"""

_TEXTS = """
    ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains
    decode elt encode endswith find_in_set format_number format_string from_base32 ilike initcap instr is_valid_utf8
    jaro_winkler_similarity lcase left len length levenshtein like locate lower lpad ltrim luhn_check make_valid_utf8
    mask octet_length overlay position printf quote regexp regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_like regexp_replace regexp_substr repeat replace right rlike rpad rtrim sentences soundex space split
    split_part startswith str_to_map substr substring substring_index to_base32 to_char to_number to_varchar translate
    trim try_parse_url try_to_number try_url_decode try_validate_utf8 parse_url ucase unbase64 upper url_decode
    url_encode validate_utf8
"""

_TIMES = """
    add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add
    date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
    dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtime localtimestamp
    make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_ym_interval
    minute month monthname months_between next_day now quarter second session_window time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc
    timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds to_date to_time
    to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp
    unix_date unix_micros unix_millis unix_nanos unix_seconds unix_timestamp weekday weekofyear window window_time
    year
"""

_CASTS = """
    bigint binary boolean cast date decimal double float int smallint string time timestamp tinyint to_binary
    try_to_binary typeof
"""

_COLLECTIONS = """
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten forall get map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    named_struct reduce reverse sequence shuffle size slice sort_array struct transform transform_keys
    transform_values try_element_at zip_with
"""

_DOCUMENTS = """
    from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys parse_json
    schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg to_csv to_json to_variant_object to_xml
    try_parse_json try_variant_array_append try_variant_get try_variant_insert try_variant_set variant_array_append
    variant_delete variant_get variant_insert variant_set variant_strip_nulls
"""

_HASHES = """
    aes_decrypt aes_encrypt crc32 hash hmac md5 sha sha1 sha2 try_aes_decrypt xxhash64
"""

_CHECKS = """
    assert_true raise_error
"""

_AGGREGATES = """
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bitmap_and_agg
    bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or
    collect_list collect_set collect_union corr count count_if count_min_sketch covar_pop covar_samp every first
    first_value grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean median min
    min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp
    string_agg sum try_avg try_sum var_pop var_samp variance
"""

_SKETCHES = """
    approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate hll_sketch_agg hll_sketch_estimate
    hll_union hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
    kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
    theta_sketch_estimate theta_union theta_union_agg tuple_difference_double tuple_difference_integer
    tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_agg_double
    tuple_sketch_agg_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double
    tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double tuple_union_theta_integer
"""

_VECTORS_AND_PLACES = """
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid vector_avg vector_cosine_similarity
    vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum
"""

_WINDOWS = """
    counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
"""

_GENERATORS = """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode
    variant_explode_outer
"""

FUNCTIONS = frozenset(
    " ".join(
        (
            *(_CONDITIONS, _NUMBERS, _RANDOM, _TEXTS, _TIMES, _CASTS, _COLLECTIONS, _DOCUMENTS, _HASHES, _CHECKS),
            *(_AGGREGATES, _SKETCHES, _VECTORS_AND_PLACES, _WINDOWS, _GENERATORS),
        )
    ).split()
)
"""The names of functions in expressions, in lower case."""

TABLE_FUNCTIONS = frozenset(f"{_GENERATORS} range".split())
"""The names of functions after FROM and LATERAL VIEW, in lower case."""
