"""How a schema may change: so that every record ever written can still be read with the newest schema."""

from __future__ import annotations

from floodmark.chain.errors import (
    DuplicateField,
    FieldOptionalityChanged,
    FieldRemoved,
    FieldTypeChanged,
    NewFieldRequired,
    SchemaUnchanged,
)
from floodmark.chain.schema import (
    DataField,
    DataSchema,
    DataType,
    DataTypeList,
    DataTypeMap,
    DataTypeOption,
    DataTypeStruct,
)

_HINT = "Add an optional field under a new name, or write to a new dataset."


def check_evolution(old: DataSchema, new: DataSchema) -> None:
    """Refuse a new schema unless it only adds optional fields, reorders them or changes extra attributes."""
    check_field_names(new)
    if old == new:
        raise SchemaUnchanged("The schema is the one that is set already.", hint="There is nothing to do.")
    _check_fields("", old.fields, new.fields)


def check_field_names(schema: DataSchema) -> None:
    """Refuse a schema with two fields of the same name."""
    _check_names("", schema.fields)


def describe(type_: DataType) -> str:
    """A type as people write it: `Int64`, `Option<List<String>>`, `Decimal(10, 2)`."""
    name = type(type_).__name__.removeprefix("DataType")
    match type_:
        case DataTypeOption(inner):
            return f"{name}<{describe(inner)}>"
        case DataTypeList(item_type, None):
            return f"{name}<{describe(item_type)}>"
        case DataTypeList(item_type, fixed_length):
            return f"{name}<{describe(item_type)}, {fixed_length}>"
        case DataTypeMap(key_type, value_type):
            return f"{name}<{describe(key_type)}, {describe(value_type)}>"
        case DataTypeStruct(fields):
            return f"{name}<{', '.join(f'{field.name}: {describe(field.type)}' for field in fields)}>"
    values = [getattr(value, "name", value) for value in vars(type_).values() if value is not None]
    return f"{name}({', '.join(map(str, values))})" if values else name


def _check_names(path: str, fields: tuple[DataField, ...]) -> None:
    seen: set[str] = set()
    for field in fields:
        name = path + field.name
        if field.name in seen:
            raise DuplicateField(f"Two fields are called {name!r}.", hint="Rename one of them.", field=name)
        seen.add(field.name)
        _check_names_inside(name, field.type)


def _check_names_inside(path: str, type_: DataType) -> None:
    match type_:
        case DataTypeStruct(fields):
            _check_names(path + ".", fields)
        case DataTypeOption(inner):
            _check_names_inside(path, inner)
        case DataTypeList(item_type):
            _check_names_inside(path + "[]", item_type)
        case DataTypeMap(key_type, value_type):
            _check_names_inside(path + "{key}", key_type)
            _check_names_inside(path + "{value}", value_type)


def _check_fields(path: str, old: tuple[DataField, ...], new: tuple[DataField, ...]) -> None:
    new_types = {field.name: field.type for field in new}
    for field in old:
        name = path + field.name
        if field.name not in new_types:
            raise FieldRemoved(f"Field {name!r} is gone from the schema.", hint=_HINT, field=name)
        _check_type(name, field.type, new_types[field.name])
    old_names = {field.name for field in old}
    for field in new:
        if field.name not in old_names and not isinstance(field.type, DataTypeOption):
            name = path + field.name
            message = f"The new field {name!r} is a required {describe(field.type)}."
            hint = "Make it optional: the records that are there do not have it."
            raise NewFieldRequired(message, hint=hint, field=name)


def _check_type(path: str, old: DataType, new: DataType) -> None:
    old_inner = old.inner if isinstance(old, DataTypeOption) else old
    new_inner = new.inner if isinstance(new, DataTypeOption) else new
    if type(old_inner) is not type(new_inner):
        raise _type_changed(path, old, new)
    if isinstance(old, DataTypeOption) is not isinstance(new, DataTypeOption):
        before, after = ("optional", "required") if isinstance(old, DataTypeOption) else ("required", "optional")
        message = f"Field {path!r} was {before} and is {after} now."
        raise FieldOptionalityChanged(message, hint=f"Keep it {before}.", field=path, old=old, new=new)
    match old_inner, new_inner:
        case DataTypeStruct(old_fields), DataTypeStruct(new_fields):
            _check_fields(path + ".", old_fields, new_fields)
        case DataTypeList(old_item, old_length), DataTypeList(new_item, new_length) if old_length == new_length:
            _check_type(path + "[]", old_item, new_item)
        case (
            DataTypeMap(old_key, old_value, old_sorted),
            DataTypeMap(new_key, new_value, new_sorted),
        ) if old_sorted == new_sorted:
            _check_type(path + "{key}", old_key, new_key)
            _check_type(path + "{value}", old_value, new_value)
        case DataTypeOption(), DataTypeOption():
            _check_type(path, old_inner, new_inner)
        case _:
            if old_inner != new_inner:
                raise _type_changed(path, old, new)


def _type_changed(path: str, old: DataType, new: DataType) -> FieldTypeChanged:
    message = f"Field {path!r} was {describe(old)} and is {describe(new)} now."
    return FieldTypeChanged(message, hint=_HINT, field=path, old=old, new=new)
